import math
import torch
import torch.nn as nn
import torch.nn.functional as F

# Wasserstein GAN for ridge profiles under sea ice (draft in metres, 16 sonar pings per profile)
torch.manual_seed(31)
PINGS, LATENT, BATCH = 16, 4, 32
LAMBDA, EVERY, ITERS = 1.0, 4, 40


def sonar_batch(n):
    pos = torch.arange(PINGS).float()[None]
    centre = 3 + 10 * torch.rand(n, 1)
    width = 1 + 2 * torch.rand(n, 1)
    keel = 3 * torch.rand(n, 1)
    draft = keel * torch.exp(-((pos - centre) / width) ** 2)
    level = torch.rand(n, 1) < 0.2          # level ice: a profile of zeros
    return torch.where(level, torch.zeros_like(draft), F.relu(draft - 0.05))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(LATENT, 32), nn.ReLU(), nn.Linear(32, PINGS))

    def forward(self, z):
        return F.relu(self.body(z))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(PINGS, 24, bias=False)
        self.outer = nn.Linear(24, 1)

    def forward(self, x):
        return self.outer(F.relu(self.inner(x)))[:, 0]


def penalty(critic, real, fake):
    mix = torch.rand(real.shape[0], 1)
    x = (mix * real + (1 - mix) * fake).requires_grad_(True)
    slope, = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    length = torch.linalg.vector_norm(slope, dim=1)     # exactly 0 where every unit is off
    return ((length - 1) ** 2).mean(), int((length == 0).sum())


gen, critic = Generator(), Critic()
opt_g = torch.optim.RMSprop(gen.parameters(), lr=2e-3)
opt_c = torch.optim.Adam(critic.parameters(), lr=4e-3, betas=(0.0, 0.9))
best, g_loss = -math.inf, math.inf

for it in range(1, ITERS + 1):
    real = sonar_batch(BATCH)
    with torch.no_grad():
        fake = gen(torch.randn(BATCH, LATENT))
        both_level = torch.rand(BATCH, 1) < 0.1
        fake = fake.masked_fill(both_level, 0.0)
        real = real.masked_fill(both_level, 0.0)
    gp, flat = penalty(critic, real, fake)
    distance = critic(real).mean() - critic(fake).mean()
    opt_c.zero_grad(set_to_none=True)
    (LAMBDA * gp - distance).backward()
    opt_c.step()
    best = max(best, distance.item())

    if it % EVERY == 0:
        opt_g.zero_grad(set_to_none=True)
        loss = -critic(gen(torch.randn(BATCH, LATENT))).mean()
        loss.backward()
        opt_g.step()
        g_loss = loss.item()
    print(f"{it:3d} distance {distance.item():+.4f} best {best:+.4f} penalty {gp.item():.4f} flat {flat} g {g_loss:+.4f}")

total = sum(w.abs().sum().item() for net in (gen, critic) for w in net.parameters())
print("all weights, absolute:", round(total, 5))
