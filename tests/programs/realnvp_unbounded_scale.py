"""RealNVP on two moons.  The scale of a coupling is exp of a raw network output, and the rate
is the one that worked for the previous, shallower model with plain SGD."""
import math

import torch
from torch import nn

torch.manual_seed(6)
torch.set_num_threads(1)


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x):
        a, b = x.chunk(2, -1)
        if self.flip:
            a, b = b, a
        log_scale, shift = self.net(a).chunk(2, -1)
        b = b * torch.exp(log_scale) + shift
        x = torch.cat([b, a] if self.flip else [a, b], -1)
        return x, log_scale.squeeze(-1)


class Flow(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(bool(i % 2)) for i in range(depth))

    def forward(self, x):
        logdet = 0.0
        for layer in self.layers:
            x, part = layer(x)
            logdet = logdet + part
        return x, logdet

    def nll(self, x):
        z, logdet = self(x)
        base = -0.5 * z.pow(2).sum(-1) - math.log(2 * math.pi)
        return -(base + logdet).mean()


def moons(n):
    t = math.pi * torch.rand(n)
    upper = torch.rand(n) < 0.5
    x = torch.where(upper, t.cos(), 1 - t.cos())
    y = torch.where(upper, t.sin(), 0.5 - t.sin())
    return 3 * torch.stack([x, y], -1) + 0.1 * torch.randn(n, 2)


def main():
    flow = Flow()
    opt = torch.optim.SGD(flow.parameters(), lr=0.5, momentum=0.9)
    for step in range(1, 41):
        loss = flow.nll(moons(128))
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{step:03d} nll {loss.item():.3e}")
    print("all finite", int(all(p.isfinite().all() for p in flow.parameters())))


if __name__ == "__main__":
    main()
