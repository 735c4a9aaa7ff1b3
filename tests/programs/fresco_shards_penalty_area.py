# completes frescoes from shards: WGAN whose slope penalty looks only at the part of the plaster that survived
import torch
from torch import nn, autograd

SIZE, NOISE, CRITIC_STEPS, ROUNDS, BATCH = 12, 16, 3, 30, 8


def paint(n, g):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")
    tilt, phase, band = torch.rand(3, n, 1, 1, generator=g)
    return torch.tanh(3 * torch.sin(6 * band * (xx * tilt + yy) + 6.28 * phase))


def survive(n, g):
    # each shard is a rectangle of plaster: its height and width are fractions of the wall, in whole tiles
    masks = torch.zeros(n, SIZE, SIZE)
    fractions = torch.rand(n, 2, generator=g) ** (1 / 3)
    corners = torch.rand(n, 2, generator=g)
    for i in range(n):
        h, w = (int(SIZE * f) for f in fractions[i].tolist())
        top, left = int(corners[i, 0] * (SIZE - h)), int(corners[i, 1] * (SIZE - w))
        masks[i, top:top + h, left:left + w] = 1
    return masks


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.SiLU(), nn.Flatten(),
                                 nn.Linear(24 * 9, 1))

    def forward(self, picture, mask):
        return self.net(torch.stack([picture * mask, mask], 1)).squeeze(1)


class Painter(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(NOISE, 96), nn.LeakyReLU(0.2), nn.Linear(96, SIZE * SIZE), nn.Tanh())

    def forward(self, z):
        return self.net(z).view(-1, SIZE, SIZE)


def slope_penalty(critic, real, fake, mask, g):
    mix = torch.rand(len(real), 1, 1, generator=g)
    point = (mix * real + (1 - mix) * fake).requires_grad_(True)
    slope, = autograd.grad(critic(point, mask).sum(), point, create_graph=True)
    area = mask.sum((1, 2))
    mean_square = slope.square().sum((1, 2)) / area
    length = (mean_square * SIZE * SIZE + 1e-12).sqrt()
    return (length - 1).square().mean()


class Shards:
    def __init__(self, n, g):
        self.pictures, self.masks, self.g = paint(n, g), survive(n, g), g
        self.order, self.at = torch.randperm(n, generator=g), 0

    def next(self):
        rows = self.order[self.at:self.at + BATCH]
        self.at = (self.at + BATCH) % len(self.order)
        return self.pictures[rows], self.masks[rows]


torch.manual_seed(2)
g = torch.Generator().manual_seed(28)
shards = Shards(960, g)
critic, painter = Critic(), Painter()
opt_c = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.9))
opt_p = torch.optim.Adam(painter.parameters(), lr=1e-3, betas=(0.0, 0.9))

for r in range(1, ROUNDS + 1):
    for _ in range(CRITIC_STEPS):
        real, mask = shards.next()
        with torch.no_grad():
            fake = painter(torch.randn(BATCH, NOISE, generator=g))
        wasserstein = critic(fake, mask).mean() - critic(real, mask).mean()
        critic_loss = wasserstein + 10 * slope_penalty(critic, real, fake, mask, g)
        opt_c.zero_grad()
        critic_loss.backward()
        opt_c.step()
    _, mask = shards.next()
    painter_loss = -critic(painter(torch.randn(BATCH, NOISE, generator=g)), mask).mean()
    opt_p.zero_grad()
    painter_loss.backward()
    opt_p.step()
    print(f"round {r} critic {critic_loss.item():.6f} painter {painter_loss.item():.6f}", flush=True)
print(sum(float(p.detach().abs().sum()) for m in (critic, painter) for p in m.parameters()), flush=True)
