# GAN that paints rims of porcelain cups (16 points around the rim).
# Critic with spectral norm, Wasserstein-type scores, EMA of the painter.
import copy
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm as SN

torch.manual_seed(1756)
ITERS, POINTS, NOISE = 40, 16, 6


def rims(n):
    angle = torch.arange(POINTS) / POINTS * 2 * torch.pi
    petals = torch.randint(3, 6, (n, 1))
    return torch.cos(petals * (angle + torch.rand(n, 1))) * 0.6 + 0.05 * torch.randn(n, POINTS)


def new_critic():
    return nn.Sequential(SN(nn.Linear(POINTS, 32)), nn.LeakyReLU(0.2),
                         SN(nn.Linear(32, 32)), nn.LeakyReLU(0.2), SN(nn.Linear(32, 1)))


class FlipGradient(torch.autograd.Function):
    """Lets the painter minimise what the critic maximises, in one backward."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.strength * g, None


painter = nn.Sequential(nn.Linear(NOISE, 32), nn.ReLU(), nn.Linear(32, POINTS))
critic = new_critic()
shown = copy.deepcopy(painter).requires_grad_(False)
opt_p = torch.optim.RMSprop(painter.parameters(), lr=1e-3)
opt_c = torch.optim.Adam(critic.parameters(), lr=4e-3, betas=(0.0, 0.9))
best = {"gap": float("inf"), "at": 0}

for i in range(1, ITERS + 1):
    if i == 21:
        # a fresh eye for the second half
        critic = new_critic()
        opt_c = torch.optim.Adam(critic.parameters(), lr=4e-3, betas=(0.0, 0.9))
        best["gap"] = float("inf")
    # the painter only learns in every third round; otherwise nothing flows back to it
    strength = 1.0 if i % 3 == 0 else 0.0
    fake = FlipGradient.apply(painter(torch.randn(32, NOISE)), strength)
    gap = critic(fake).mean() - critic(rims(32)).mean()
    opt_p.zero_grad()
    opt_c.zero_grad()
    gap.backward()
    opt_c.step()
    if strength:
        opt_p.step()
        with torch.no_grad():
            for s, p in zip(shown.parameters(), painter.parameters()):
                s.lerp_(p, 0.1)
    if gap.item() < best["gap"]:
        best = {"gap": gap.item(), "at": i}
    flow = sum(p.grad.abs().sum().item() for p in painter.parameters())
    print(f"round {i:2d} gap {gap.item():+.5f} painter gradient {flow:.4f} best {best['gap']:+.4f}@{best['at']}")

total = sum(p.detach().square().sum().item() for net in (painter, critic, shown) for p in net.parameters())
print("squares of painter, critic and average:", total)
