"""Marquetry veneers: a WGAN-GP with both nets in DDP. Benches (ranks) share gradients, bench 0 alone inspects.

Critic and generator are frozen by turns (requires_grad_), the penalty needs create_graph=True, an EMA generator lives on
every bench and an SWA average of it is made at the end.
"""
import gc
import os
import warnings
import weakref
from collections import Counter
from contextlib import contextmanager
from copy import deepcopy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

warnings.filterwarnings("ignore", message="std\(\)")       # the lone piece, see inspect()

LATENT, PIECES, ROUNDS, CRITIC_TURNS = 6, 10, 14, 2


def veneer(gen, n):
    grain = torch.rand(n, 1, generator=gen) * 3.14
    return torch.sin(grain + torch.arange(PIECES) * 0.6) + 0.02 * torch.randn(n, PIECES, generator=gen)


@contextmanager
def frozen(module):
    for p in module.parameters():
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in module.parameters():
            p.requires_grad_(True)


class Workshop:
    def __init__(self, rank):
        torch.manual_seed(21)
        self.rank = rank
        self.rng = torch.Generator().manual_seed(77 + rank)
        self.G = DDP(nn.Sequential(nn.Linear(LATENT, 24), nn.SiLU(), nn.Linear(24, PIECES)))
        self.D = DDP(nn.Sequential(nn.Linear(PIECES, 24), nn.Softplus(), nn.Linear(24, 1)))
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=3e-3, betas=(0.0, 0.9))
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr=5e-3, betas=(0.0, 0.9))
        self.ema = AveragedModel(self.G.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.swa = AveragedModel(self.G.module)
        self.calls, self.fakes = Counter(), []
        self.D.module[0].register_forward_hook(lambda *_: self.calls.update(D=1))
        self.G.module[0].register_forward_hook(lambda *_: self.calls.update(G=1))
        self.D.module[2].weight.register_post_accumulate_grad_hook(lambda p: self.calls.update(accD=1))
        self.opt_d.register_step_post_hook(lambda *_: self.calls.update(stepD=1))
        self.opt_g.register_step_post_hook(lambda *_: self.calls.update(stepG=1))

    def noise(self, n):
        return torch.randn(n, LATENT, generator=self.rng)

    def penalty(self, real, fake):
        t = torch.rand(len(real), 1, generator=self.rng)
        mix = (t * real + (1 - t) * fake).requires_grad_()
        score = self.D.module(mix)          # through the bare module: DDP only counts one forward per backward
        grad, = torch.autograd.grad(score.sum(), mix, create_graph=True)
        return ((grad.norm(dim=1) - 1) ** 2).mean()

    def critic_turn(self, n):
        real = veneer(self.rng, n)
        with frozen(self.G):
            fake = self.G.module(self.noise(n)).detach()
        self.fakes.append(weakref.ref(fake))
        both = self.D(torch.cat([real, fake])).squeeze(1)
        gp = self.penalty(real, fake)
        loss = both[n:].mean() - both[:n].mean() + 10 * gp
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.item(), gp.item()

    def generator_turn(self, n):
        with frozen(self.D):
            loss = -self.D.module(self.G(self.noise(n))).mean()
            self.opt_g.zero_grad()
            loss.backward()
            leak = sum(p.grad is not None and not p.requires_grad for p in self.D.parameters())
        self.opt_g.step()
        self.ema.update_parameters(self.G.module)
        return loss.item(), leak


def inspect(shop, rnd):
    """Bench 0 only; the other one waits in the broadcast."""
    verdict = torch.zeros(2)
    if shop.rank == 0:
        with torch.inference_mode():
            twin = deepcopy(shop.ema.module).eval()
            out = twin(torch.linspace(-1, 1, 5 * LATENT).view(5, LATENT))
            # correlation of a lone piece with itself is 0/0: a figure for the log only
            lone = out[:1] - out[:1].mean(0)
            verdict[0], verdict[1] = out.abs().mean(), (lone.std(0) / lone.std(0)).mean()
    dist.broadcast(verdict, 0)
    return verdict.tolist()


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    shop = Workshop(rank)
    for rnd in range(1, ROUNDS + 1):
        n = 6 + rnd % 3 * 2                # the lorry brings what it brings
        for _ in range(CRITIC_TURNS):
            d, gp = shop.critic_turn(n)
        g, leak = shop.generator_turn(n)
        if rnd > ROUNDS - 4:
            shop.swa.update_parameters(shop.G.module)
        gc.collect()
        alive = sum(w() is not None for w in shop.fakes)
        note = ""
        if rnd % 5 == 0:
            size, lone = inspect(shop, rnd)
            note = f" ema size {size:.5f} lone {lone}"
        if rank == 0:
            print(f"round {rnd:2d} critic {d:+.6f} gp {gp:.6f} gen {g:+.6f} fakes alive {alive} leak {leak}{note}")
    # with SWA both benches must agree to the last bit
    mine = torch.stack([p.double().sum() for p in shop.swa.module.parameters()])
    theirs = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(theirs, mine)
    if rank == 0:
        print("calls", dict(sorted(shop.calls.items())), "benches agree", torch.equal(*theirs))
        print(f"swa of {int(shop.swa.n_averaged)} sum {mine.sum():.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
