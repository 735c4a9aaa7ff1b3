"""WGAN on weaving drafts. Swatches from the museum are torn, so each has a mask of what is left of the cloth."""

import torch
from torch import nn

SIDE, LATENT, BATCH, CRITIC_STEPS, ROUNDS = 12, 10, 8, 3, 30


def twill(over, under, shift):
    i, j = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    return (((i * shift + j) % (over + under)) < over).float() * 2 - 1


def swatches(n, seed):
    g = torch.Generator().manual_seed(seed)
    cloth, left = [], []
    for _ in range(n):
        o, u, s = (int(torch.randint(1, 4, (1,), generator=g)) for _ in range(3))
        cloth.append(twill(o, u, s) + 0.05 * torch.randn(SIDE, SIDE, generator=g))
        keep = torch.ones(SIDE, SIDE)
        if float(torch.rand(1, generator=g)) < 0.4:
            # a tear: everything to the right of a column and below a row is lost
            row = int(torch.randint(0, SIDE, (1,), generator=g))
            column = int(torch.randint(0, SIDE, (1,), generator=g))
            keep[row:, column:] = 0
        left.append(keep)
    return torch.stack(cloth)[:, None], torch.stack(left)[:, None]


class Weaver(nn.Module):
    def __init__(self):
        super().__init__()
        self.grow = nn.Linear(LATENT, 24 * 3 * 3)
        self.weave = nn.Sequential(
            nn.ConvTranspose2d(24, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh()
        )

    def forward(self, z):
        return self.weave(self.grow(z).view(-1, 24, 3, 3))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(2, 16, 4, 2, 1),
            nn.SiLU(),
            nn.Conv2d(16, 24, 4, 2, 1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(24 * 9, 1),
        )

    def forward(self, cloth, keep):
        return self.look(torch.cat([cloth * keep, keep], 1)).squeeze(1)


def penalty(critic, real, fake, keep, g):
    mix = torch.rand(len(real), 1, 1, 1, generator=g)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(between, keep).sum(), between, create_graph=True)
    length = slope.flatten(1).pow(2).sum(1).sqrt()
    return ((length - 1) ** 2).mean()


def endless(cloth, left):
    at = 0
    while True:
        pick = torch.arange(at, at + BATCH) % len(cloth)
        yield cloth[pick], left[pick]
        at += BATCH


def main():
    torch.manual_seed(17)
    g = torch.Generator().manual_seed(18)
    weaver, critic = Weaver(), Critic()
    opt_w = torch.optim.Adam(weaver.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    source = endless(*swatches(ROUNDS * CRITIC_STEPS * BATCH, seed=SEED))
    for r in range(1, ROUNDS + 1):
        for _ in range(CRITIC_STEPS):
            real, keep = next(source)
            fake = weaver(torch.randn(BATCH, LATENT, generator=g)).detach()
            gap = critic(fake, keep).mean() - critic(real, keep).mean()
            loss_c = gap + 10 * penalty(critic, real, fake, keep, g)
            opt_c.zero_grad()
            loss_c.backward()
            opt_c.step()
        made = weaver(torch.randn(BATCH, LATENT, generator=g))
        loss_w = -critic(made, torch.ones_like(made)).mean()
        opt_w.zero_grad()
        loss_w.backward()
        opt_w.step()
        print(f"round {r:2d} critic {loss_c.item():.6f} weaver {loss_w.item():.6f}", flush=True)
    both = list(weaver.parameters()) + list(critic.parameters())
    print(f"{sum(p.detach().abs().sum().item() for p in both):.5f}", flush=True)


SEED = 3

if __name__ == "__main__":
    main()
