# energy based model of a ring + two moons of pollen shapes (2-d summary), persistent contrastive divergence
# notes: chains are kept between iterations (PCD), 4% of them start anew from a broad proposal
import copy
import torch
from torch import nn, autograd

torch.manual_seed(1923)
torch.set_num_threads(1)

CHAINS = 96
LANGEVIN_STEPS = 12
STEP = 0.12
NOISE = 0.1
ITERS = 45


def sample_pollen(n):
    kind = torch.rand(n)
    angle = 2 * torch.pi * torch.rand(n)
    ring = torch.stack([angle.cos(), angle.sin()], 1) * 1.6
    moon = torch.stack([angle.cos().abs() * 0.6, 0.7 * angle.sin()], 1)
    x = torch.where(kind[:, None] < 0.6, ring, moon)
    return x + 0.06 * torch.randn(n, 2)


class Energy(nn.Module):
    """network + a quartic well, so that exp(-E) can be normalised"""

    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.well = nn.Parameter(torch.tensor(0.0))

    def forward(self, x):
        wall = 0.25 * self.well.exp() * x.pow(4).sum(-1)
        return self.net(x).squeeze(-1) + wall


def proposal(n):
    # a broad start: gaussian with a random width
    return 1.2 * torch.randn(n, 2) * torch.exp(0.5 * torch.randn(n, 1))


def langevin(energy, x):
    for p in energy.parameters():
        p.requires_grad_(False)
    for _ in range(LANGEVIN_STEPS):
        x = x.detach().requires_grad_(True)
        slope, = autograd.grad(energy(x).sum(), x)
        x = x - 0.5 * STEP * slope + NOISE * torch.randn_like(x)
    for p in energy.parameters():
        p.requires_grad_(True)
    return x.detach()


@torch.no_grad()
def follow(slow, fast, decay=0.98):
    for a, b in zip(slow.parameters(), fast.parameters()):
        a.lerp_(b, 1 - decay)


energy = Energy()
ema = copy.deepcopy(energy)
opt = torch.optim.Adam(energy.parameters(), lr=2e-3, betas=(0.5, 0.99))
chains = torch.randn(CHAINS, 2)

for it in range(1, ITERS + 1):
    fresh = torch.rand(CHAINS) < 0.04
    chains = torch.where(fresh[:, None], proposal(CHAINS), chains)
    chains = langevin(energy, chains)

    up = energy(sample_pollen(CHAINS))
    down = energy(chains)
    loss = up.mean() - down.mean() + 0.02 * (up.pow(2).mean() + down.pow(2).mean())
    opt.zero_grad()
    loss.backward()
    opt.step()
    follow(ema, energy)
    print(f"it {it:03d} cd {loss.item():+.6f} fresh {int(fresh.sum())}", flush=True)

print(sum(p.detach().abs().sum().item() for p in energy.parameters()), flush=True)
