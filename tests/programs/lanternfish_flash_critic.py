"""WGAN (weight clipping, RMSprop, as in the first paper) for flash profiles of lanternfish photophores.

Two networks, each in its own DDP. The critic learns in every round, the generator in every second one.
The critic's loss is an estimate of minus the Wasserstein distance: negative is what it should be.
"""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SAMPLES = 40      # points of a profile, 5 ms each


def mlp(*sizes, last=None):
    layers = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(a, b))
        if i < len(sizes) - 2:
            layers.append(nn.LeakyReLU(0.2))
    if last is not None:
        layers.append(last)
    return nn.Sequential(*layers)


def flashes(n, gen):
    """Recorded profiles: quick rise, slow decay, and sometimes a double flash."""
    t = torch.arange(SAMPLES).float()
    onset = 5 + 10 * torch.rand(n, 1, generator=gen)
    decay = 4 + 6 * torch.rand(n, 1, generator=gen)
    y = torch.where(t > onset, torch.exp(-(t - onset).clamp(min=0) / decay), torch.zeros(()))
    double = (torch.rand(n, 1, generator=gen) < 0.3).float()
    second = torch.where(t > onset + 15, torch.exp(-(t - onset - 15).clamp(min=0) / decay), torch.zeros(()))
    return y + 0.6 * double * second


class Diary:
    """Figures for the notebook; nothing here is trained on."""

    def __init__(self, rank):
        self.rank = rank

    def bright_decay(self, fake):
        bright = fake[fake.max(dim=1).values > 0.95]        # empty in the first rounds: nan, by intent
        return bright[:, -1].mean()

    def write(self, i, c_loss, g_loss, fake):
        pair = torch.stack([c_loss, g_loss])
        dist.all_reduce(pair)
        pair /= dist.get_world_size()
        tail = self.bright_decay(fake)
        if self.rank == 0:
            print(f"round {i:3d} critic {pair[0]:+.7f} generator {pair[1]:+.7f} bright tail {tail:.4f}")


def critic_round(critic, generator, opt, real, z, clip):
    with torch.no_grad():
        fake = generator.module(z)
    scores = critic(torch.cat([real, fake]))
    s_real, s_fake = scores.chunk(2)
    loss = s_fake.mean() - s_real.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p in critic.parameters():
            p.clamp_(-clip, clip)
    return loss.detach(), fake


def generator_round(critic, generator, opt, z):
    # past the wrapper: the critic's gradients are not wanted here
    for p in critic.parameters():
        p.requires_grad_(False)
    loss = -critic.module(generator(z)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    for p in critic.parameters():
        p.requires_grad_(True)
    return loss.detach()


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=40)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--clip", type=float, default=0.08)
    a = ap.parse_args(argv)

    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(77)
    generator = DDP(mlp(8, 48, 48, SAMPLES, last=nn.Sigmoid()))
    critic = DDP(mlp(SAMPLES, 48, 24, 1))
    g_opt = torch.optim.RMSprop(generator.parameters(), lr=2e-3)
    c_opt = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(900 + rank)
    diary = Diary(rank)

    g_loss = torch.zeros(())
    for i in range(1, a.rounds + 1):
        real = flashes(a.batch, gen)
        c_loss, fake = critic_round(critic, generator, c_opt, real, torch.randn(a.batch, 8, generator=gen), a.clip)
        if i % 2 == 0:
            g_loss = generator_round(critic, generator, g_opt, torch.randn(a.batch, 8, generator=gen))
        diary.write(i, c_loss, g_loss, fake)

    if rank == 0:
        total = sum(p.double().sum().item() for m in (generator, critic) for p in m.parameters())
        print(f"weights {total:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
