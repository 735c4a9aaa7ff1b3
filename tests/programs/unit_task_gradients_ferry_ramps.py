"""Multi-task model for ferry ramps: strain regression + queue margin + draught regression.

Gradient surgery: task gradients are brought to unit length, conflicting ones projected
(PCGrad, Yu et al.), and the result is written into .grad by hand.
"""
import random

import torch
import torch.nn.functional as F
from torch import nn

random.seed(6)
torch.manual_seed(6)
torch.set_num_threads(1)


class RampNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())
        self.heads = nn.ModuleDict({t: nn.Linear(16, 1) for t in ("strain", "queue", "draught")})

    def forward(self, x):
        h = self.trunk(x)
        return {t: head(h).squeeze(-1) for t, head in self.heads.items()}


def sailing(step, n=20):
    g = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(n, 9, generator=g)
    side = torch.sign(x[:, 0] + 0.5 * x[:, 3])
    return x, {
        "strain": x[:, 1] * 0.7 - x[:, 2],
        # +1 queue clears, -1 it does not, 0: was not observed
        "queue": side * (0.0 if step == 18 else 1.0),
        "draught": (x[:, 4] + x[:, 5]).sin(),
    }


def losses(out, y):
    seen = y["queue"] != 0
    hinge = F.relu(1 - y["queue"] * out["queue"]) * seen
    return {
        "strain": F.mse_loss(out["strain"], y["strain"]),
        "queue": hinge.sum() / seen.sum().clamp(min=1),
        "draught": F.l1_loss(out["draught"], y["draught"]),
    }


class Surgeon:
    def __init__(self, params):
        self.params = list(params)
        self.conflicts = 0

    def flat(self, loss):
        gs = torch.autograd.grad(loss, self.params, retain_graph=True, allow_unused=True)
        return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(self.params, gs)])

    @torch.no_grad()
    def project(self, grads):
        units = []
        for g in grads:
            length = g.norm()
            units.append(g / length)
        out = []
        for i, g in enumerate(units):
            others = [j for j in range(len(units)) if j != i]
            random.shuffle(others)
            for j in others:
                dot = g @ units[j]
                if dot < 0:
                    self.conflicts += 1
                    g = g - dot * units[j]
            out.append(g)
        return torch.stack(out).mean(0)

    @torch.no_grad()
    def write(self, flat):
        at = 0
        for p in self.params:
            p.grad = flat[at:at + p.numel()].view_as(p).clone()
            at += p.numel()


def main():
    net = RampNet()
    opt = torch.optim.Adam(net.parameters(), lr=6e-3)
    surgeon = Surgeon(net.parameters())
    for step in range(1, 33):
        x, y = sailing(step)
        parts = losses(net(x), y)
        merged = surgeon.project([surgeon.flat(v) for v in parts.values()])
        surgeon.write(merged)
        opt.step()
        shown = "  ".join(f"{k} {v.item():.5f}" for k, v in parts.items())
        print(f"{step:3d}  {shown}  conflicts {surgeon.conflicts}")
    print("weights", sum(p.detach().sum().item() for p in net.parameters()))


main()
