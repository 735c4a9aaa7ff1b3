# Conditional neural process: the temperature of a tide pool over the day, from the few readings that a volunteer took.
import torch
from torch import nn
from torch.distributions import Normal

rng = torch.Generator().manual_seed(1319)
torch.manual_seed(1319)


def day():
    """one pool on one day: times in [0, 1], temperatures in standard units"""
    t = torch.rand(30, 1, generator=rng).sort(0).values
    phase, depth, flood = torch.rand(3, generator=rng)
    warm = (1 - depth) * torch.sin(3.1 * t + phase)
    return t, warm - 0.8 * torch.sigmoid(25 * (t - 0.3 - 0.5 * flood)) + 0.05 * torch.randn(30, 1, generator=rng)


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.ELU()]
    return nn.Sequential(*layers[:-1])


class CNP(nn.Module):
    def __init__(self, r=24):
        super().__init__()
        self.encode = mlp(2, 32, r)
        self.decode = mlp(r + 1, 32, 2)

    def summary(self, t, y):
        return self.encode(torch.cat([t, y], -1)).mean(0)

    def forward(self, t_seen, y_seen, t_asked):
        r = self.summary(t_seen, y_seen)
        mu, raw = self.decode(torch.cat([t_asked, r.expand(len(t_asked), -1)], -1)).chunk(2, -1)
        return Normal(mu, 0.05 + 0.95 * nn.functional.softplus(raw), validate_args=False)


cnp = CNP()
optimiser = torch.optim.RMSprop(cnp.parameters(), lr=2e-3, momentum=0.5)
POOLS = 6
readings = torch.poisson(torch.full((40, POOLS), 5.0), generator=rng).long().clamp(max=15)

for session in range(40):
    total = 0.0
    for pool in range(POOLS):
        t, y = day()
        order = torch.randperm(30, generator=rng)
        seen = order[:int(readings[session, pool])]
        total = total - cnp(t[seen], y[seen], t).log_prob(y).mean()
    loss = total / POOLS
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(cnp.parameters(), 0.5)
    optimiser.step()
    print(f"session {session + 1}: negative log-likelihood {loss.item():+.5f}, readings {readings[session].tolist()}")

print("weight mass", sum(p.detach().abs().sum().item() for p in cnp.parameters()))
