"""WGAN-GP on outlines of trilobite spines (16 radii per spine), two data-parallel workers.

    torchrun --standalone --nproc_per_node 2 ddp_wgan_gp_fossil_spines.py

The penalty needs a double backward.  Going through DDP's forward for that gave us hangs in an older release,
so the interpolates run on the bare module; the reducer only sees the one real backward per update.
"""
import argparse
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

LATENT = 6
RADII = 16


def spines(n, gen):
    """Smooth closed outlines: a few harmonics with random phase."""
    t = torch.linspace(0, 2 * math.pi, RADII + 1)[:-1]
    a = 0.3 + 0.2 * torch.rand(n, 1, generator=gen)
    b = 0.1 * torch.randn(n, 1, generator=gen)
    phi = 2 * math.pi * torch.rand(n, 1, generator=gen)
    return 1.0 + a * torch.cos(2 * t + phi) + b * torch.sin(5 * t)


class Sculptor(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(LATENT, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.out = nn.Linear(width, RADII)

    def forward(self, z):
        return self.out(self.body(z))


class Curator(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(RADII, width), nn.Softplus(), nn.Linear(width, width), nn.Softplus(),
                                 nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def penalty(bare, real, fake, gen):
    eps = torch.rand(len(real), 1, generator=gen)
    mid = (eps * real + (1 - eps) * fake).requires_grad_(True)
    slope, = torch.autograd.grad(bare(mid).sum(), mid, create_graph=True)
    return ((slope.square().sum(1) + 1e-12).sqrt() - 1).square().mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=36)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--every", type=int, default=3, help="critic updates per generator update")
    ap.add_argument("--lam", type=float, default=10.0)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(1859)
    sculptor, curator = DDP(Sculptor()), DDP(Curator())
    gen = torch.Generator().manual_seed(77 + rank)
    opt_s = torch.optim.Adam(sculptor.parameters(), lr=2e-3, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(curator.parameters(), lr=2e-3, betas=(0.0, 0.9))

    for it in range(1, args.iters + 1):
        real = spines(args.batch, gen)
        with torch.no_grad():
            fake = sculptor.module(torch.randn(args.batch, LATENT, generator=gen))
        scores = curator(torch.cat([real, fake]))
        gap = scores[args.batch:].mean() - scores[:args.batch].mean()
        gp = penalty(curator.module, real, fake, gen)
        loss_c = gap + args.lam * gp
        opt_c.zero_grad(set_to_none=True)
        loss_c.backward()
        opt_c.step()

        said = "-"
        if it % args.every == 0:
            curator.requires_grad_(False)          # otherwise the reducer of the critic would wake up
            loss_s = -curator.module(sculptor(torch.randn(args.batch, LATENT, generator=gen))).mean()
            opt_s.zero_grad(set_to_none=True)
            loss_s.backward()
            opt_s.step()
            curator.requires_grad_(True)
            said = f"{loss_s.item():.5f}"
        if rank == 0:
            print(f"iter {it:2d}  wasserstein {-gap.item():+.5f}  gp {gp.item():.5f}  critic {loss_c.item():+.5f}  "
                  f"sculptor {said}", flush=True)

    if rank == 0:
        total = sum(p.double().sum().item() for m in (sculptor, curator) for p in m.parameters())
        print(f"sum of weights {total:.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
