"""Diffusion model of emission-line profiles of planetary nebulae. DDP, EMA weights, cosine-like schedule rescaled
to zero terminal SNR (Lin et al. 2023), loss on the reconstructed x0 so that line ratios can be penalised."""
import copy
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

T_STEPS = 400


def zero_terminal(betas):
    """Algorithm 1 of the paper: shift sqrt(alpha_bar) so that the last one is 0, keep the first."""
    root = torch.cumprod(1 - betas, 0).sqrt()
    first, last = root[0].clone(), root[-1].clone()
    root = (root - last) * first / (first - last)
    return root.square()


class Schedule(nn.Module):
    def __init__(self):
        super().__init__()
        betas = torch.linspace(1e-4 ** 0.5, 0.03 ** 0.5, T_STEPS) ** 2
        self.register_buffer("abar", zero_terminal(betas), persistent=False)

    def diffuse(self, x0, t, eps):
        ab = self.abar[t][:, None]
        return ab.sqrt() * x0 + (1 - ab).sqrt() * eps

    def recover(self, xt, t, eps_hat):
        ab = self.abar[t][:, None]
        return (xt - (1 - ab).sqrt() * eps_hat) / ab.sqrt()

    def weight(self, t, cap=5.0):
        ab = self.abar[t]
        return (ab / (1 - ab)).clamp(max=cap)


class Denoiser(nn.Module):
    def __init__(self, bins, d=48):
        super().__init__()
        self.time = nn.Embedding(T_STEPS, d)
        self.into = nn.Linear(bins, d)
        self.body = nn.ModuleList([nn.Linear(d, d) for _ in range(2)])
        self.out = nn.Linear(d, bins)
        nn.init.normal_(self.time.weight, std=0.1)

    def forward(self, xt, t):
        h = self.into(xt) + self.time(t)
        for lin in self.body:
            h = h + torch.nn.functional.silu(lin(h))
        return self.out(h)


class Ema:
    def __init__(self, model, half_life=12):
        self.shadow = copy.deepcopy(model).requires_grad_(False)
        self.keep = 0.5 ** (1 / half_life)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.keep)


def profiles(rank, batch, bins=24):
    """double-peaked [O III] lines, expansion velocities of 10 to 40 km/s"""
    g = torch.Generator().manual_seed(62 + rank)
    v = torch.linspace(-60, 60, bins)
    while True:
        vexp = 10 + 30 * torch.rand(batch, 1, generator=g)
        x0 = torch.exp(-((v - vexp) / 9) ** 2) + torch.exp(-((v + vexp) / 9) ** 2)
        t = torch.randint(T_STEPS, (batch,), generator=g)
        yield 2 * x0 - 1, t, torch.randn(batch, bins, generator=g)


def loss_fn(net, sched, x0, t, eps):
    xt = sched.diffuse(x0, t, eps)
    x0_hat = sched.recover(xt, t, net(xt, t))
    per_bin = (x0_hat - x0).square().mean(-1)
    return (sched.weight(t) * per_bin).mean()


def train(steps=44, batch=10, lr=2e-3):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(17)
    net = Denoiser(bins=24)
    ddp = DistributedDataParallel(net)
    sched, ema = Schedule(), Ema(net)
    opt = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=1e-4)
    data = profiles(rank, batch)
    for step in range(1, steps + 1):
        for group in opt.param_groups:
            group["lr"] = lr * min(1.0, step / 8) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        x0, t, eps = next(data)
        loss = loss_fn(ddp, sched, x0, t, eps)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        ema.update(net)
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"{step:3d}  x0 loss {shown.item() / world:.6f}  t in [{t.min()}, {t.max()}]", flush=True)
    if rank == 0:
        total = sum(p.double().sum().item() for p in ema.shadow.parameters())
        print(f"ema weights: {total:.6f}; raw weights: {sum(p.detach().double().sum().item() for p in net.parameters()):.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
