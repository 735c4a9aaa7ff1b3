import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

torch.manual_seed(1912)


class Energy(nn.Module):
    """Unnormalised density of line tension and heading of a moored ship."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.out = nn.Linear(48, 1)
        self.log_z = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.features(x)
        return self.out(h.float()).squeeze(-1) + self.log_z


class BoxNoise:
    def __init__(self, low, high):
        self.low, self.high = torch.tensor(low), torch.tensor(high)
        self.volume = (self.high - self.low).prod()

    def sample(self, n):
        return self.low + (self.high - self.low) * torch.rand(n, 2)

    def log_density(self, x):
        inside = ((x >= self.low) & (x <= self.high)).all(-1)
        return torch.log(inside.float() / self.volume)


def mooring_records(n):
    swing = torch.randint(0, 2, (n,)).float() * 2 - 1
    heading = 1.2 * swing + 0.2 * torch.randn(n)
    tension = 0.8 * heading.abs() + 0.15 * torch.randn(n)
    records = torch.stack([tension, heading], 1).clamp(-2.8, 2.8)
    records[707, 0] = 3.6                         # night watch of the 14th
    return records


records = mooring_records(1600)
noise = BoxNoise([-3.0, -3.0], [3.0, 3.0])
energy = Energy()
optimizer = torch.optim.RMSprop(energy.parameters(), lr=2e-3)
decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)

for k, real in enumerate(records.split(40), start=1):
    fake = noise.sample(len(real))
    x = torch.cat([real, fake])
    label = torch.cat([torch.ones(len(real)), torch.zeros(len(fake))])
    log_odds = -energy(x) - noise.log_density(x)
    loss = bce(log_odds, label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    decay.step()
    print("batch %d  nce %.5f  log z %.4f" % (k, loss.item(), energy.log_z.item()))

with torch.no_grad():
    print("weights: %.5f" % sum(p.abs().sum() for p in energy.parameters()))
