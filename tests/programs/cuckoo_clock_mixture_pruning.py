# Mixture density network for the daily error of cuckoo clocks (minutes per day), given temperature,
# humidity and the age of the bellows.  Weak components are pruned for good while training.
import math
import torch
from torch import nn


class MixtureNet(nn.Module):
    def __init__(self, components=8, hidden=40):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.logits = nn.Linear(hidden, components)
        self.mean = nn.Linear(hidden, components)
        self.log_scale = nn.Linear(hidden, components)
        self.register_buffer("alive", torch.ones(components, dtype=torch.bool))
        nn.init.uniform_(self.mean.bias, -0.6, 0.6)
        nn.init.constant_(self.log_scale.bias, -1.2)

    def forward(self, x):
        h = self.trunk(x)
        logits = self.logits(h).masked_fill(~self.alive, -math.inf)
        return torch.log_softmax(logits, 1), self.mean(h), self.log_scale(h).clamp(-3.4, 3)

    @torch.no_grad()
    def prune(self, usage, keep):
        order = usage.masked_fill(~self.alive, math.inf).argsort()
        n_drop = max(0, int(self.alive.sum()) - keep)
        self.alive[order[:n_drop]] = False


def nll(log_pi, mean, log_scale, y):
    z = (y[:, None] - mean) * torch.exp(-log_scale)
    log_normal = -0.5 * z.square() - log_scale - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(log_pi + log_normal, dim=1)


def workshop(n, gen):
    x = torch.randn(n, 3, generator=gen)
    fast = torch.rand(n, generator=gen) < torch.sigmoid(1.5 * x[:, 2])
    y = torch.where(fast, 0.30 + 0.10 * x[:, 0], -0.25 - 0.06 * x[:, 1])
    y = y + 0.06 * torch.randn(n, generator=gen)
    return x, y


def main():
    gen = torch.Generator().manual_seed(404)
    torch.manual_seed(404)
    x, y = workshop(4096, gen)
    net = MixtureNet()
    opt = torch.optim.NAdam(net.parameters(), lr=5e-3)
    usage = torch.zeros(8)
    pruning = {18: 5, 30: 3, 44: 2}
    for step in range(1, 57):
        rows = torch.randint(0, len(x), (256,), generator=gen)
        log_pi, mean, log_scale = net(x[rows])
        loss = nll(log_pi, mean, log_scale, y[rows]).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        with torch.no_grad():
            pi = log_pi.exp()
            usage = 0.8 * usage + 0.2 * pi.mean(0)
            # reads nan as soon as a component is gone (0 * -inf); it is only for the eye
            entropy = -(pi * log_pi).sum(1).mean()
            rarest = log_pi.min()
        print(f"{step:3d} nll {loss.item():+.7f} components {int(net.alive.sum())} "
              f"entropy {entropy.item():.5f} rarest {rarest.item():.4f}", flush=True)
        if step in pruning:
            net.prune(usage, pruning[step])
    print(f"{sum(p.detach().abs().sum().item() for p in net.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
