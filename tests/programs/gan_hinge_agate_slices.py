"""Banded agate slices from a hinge GAN; every fourth step the critic also pays a gradient penalty."""
import copy
import itertools

import torch
from torch import nn


def agates(batch, rng, size=16):
    radius = torch.linspace(0, 1, size)
    phase = 6.28 * torch.rand(batch, 1, generator=rng)
    pitch = 8 + 4 * torch.rand(batch, 1, generator=rng)
    return torch.sin(pitch * radius + phase) * (1 - 0.3 * radius)


class Generator(nn.Sequential):
    def __init__(self, noise=6, size=16):
        super().__init__(nn.Linear(noise, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2),
                         nn.Linear(32, size), nn.Tanh())


class Critic(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(size, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2))
        self.score = nn.Linear(48, 1)

    def forward(self, x):
        return self.score(self.features(x)).squeeze(-1)


def critic_hinge(real, fake):
    return torch.relu(1.0 - real).mean() + torch.relu(1.0 + fake).mean()


def slope_penalty(critic, real, fake, rng):
    mix = torch.rand(real.shape[0], 1, generator=rng)
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    slope, = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    length = (slope.square().sum(1) + 1e-12).sqrt()
    return (length - 1.0).square().mean()


def main(iterations=42, batch=24):
    torch.manual_seed(6)
    rng = torch.Generator().manual_seed(60)
    generator, critic = Generator(), Critic()
    shadow = copy.deepcopy(generator).requires_grad_(False)
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=1.5e-2, betas=(0.0, 0.9))
    closest = float("inf")
    for i in itertools.count(1):
        if i > iterations:
            break
        real = agates(batch, rng)
        fake = generator(torch.randn(batch, 6, generator=rng))
        loss_c = critic_hinge(critic(real), critic(fake.detach()))
        extra = torch.zeros(())
        if i % 4 == 0 and i < 16:
            extra = 0.5 * slope_penalty(critic, real, fake.detach(), rng)
        opt_c.zero_grad(set_to_none=False)
        (loss_c + extra).backward()
        opt_c.step()

        critic.requires_grad_(False)
        loss_g = -critic(fake).mean()
        opt_g.zero_grad(set_to_none=True)
        loss_g.backward()
        opt_g.step()
        critic.requires_grad_(True)
        with torch.no_grad():
            for slow, fast in zip(shadow.parameters(), generator.parameters()):
                slow.lerp_(fast, 0.1)
            gap = torch.cdist(shadow(torch.randn(8, 6, generator=rng)), real).min().item()
        closest = min(closest, gap)
        print(f"{i:02d}: critic {loss_c.item():.5f} (+{extra.item():.4f})  generator {loss_g.item():+.5f}  closest {closest:.4f}")
    everything = itertools.chain(generator.parameters(), critic.parameters(), shadow.parameters())
    print("sum of squares of all weights", sum(p.detach().square().sum().item() for p in everything))


main()
