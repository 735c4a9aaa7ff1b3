"""Escapement wear: how far will a pendulum clock be off tomorrow?

An own small Trainer with callbacks over DDP; both workers are spawned from this file. The model gives
mean and log-scale of the daily rate (s/day); the loss is a Gaussian NLL on finely resolved data, thus
negative once it fits.
"""
import copy
import math
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

WORLD = 2


def workshop_record(rank, epoch, n=48):
    g = torch.Generator().manual_seed(100 * epoch + rank)
    temp = 18 + 4 * torch.randn(n, generator=g)
    amplitude = 1.6 + 0.1 * torch.randn(n, generator=g)
    oil_age = 3650 * torch.rand(n, generator=g)
    rate = -0.46 * (temp - 18) * 0.01 + 0.02 * (amplitude - 1.6) + 0.002 * torch.randn(n, generator=g)
    x = torch.stack([(temp - 18) / 4, (amplitude - 1.6) / 0.1, oil_age / 3650], -1)
    return x, rate


class RateModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, x):
        mean, log_scale = self.net(x).unbind(-1)
        return mean, log_scale.clamp(-7.0, 3.0)


def gaussian_nll(out, target):
    mean, log_scale = out
    return (0.5 * ((target - mean) * torch.exp(-log_scale)) ** 2 + log_scale + 0.5 * math.log(2 * math.pi)).mean()


class Callback:
    def on_step(self, trainer, loss): ...
    def on_epoch(self, trainer, mean_loss): ...


class Ema(Callback):
    def __init__(self, model, decay):
        self.shadow, self.decay = copy.deepcopy(model).requires_grad_(False), decay

    @torch.no_grad()
    def on_step(self, trainer, loss):
        for s, p in zip(self.shadow.parameters(), trainer.model.module.parameters()):
            s.lerp_(p, 1 - self.decay)


class Plateau(Callback):
    """Steps on the loss averaged over the workers, so that both agree on the rate."""

    def __init__(self, optimizer):
        self.sched = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.02)

    def on_epoch(self, trainer, mean_loss):
        self.sched.step(mean_loss)


class Report(Callback):
    def __init__(self, ema):
        self.best, self.ema, self.last = float("inf"), ema, []

    @torch.no_grad()
    def on_epoch(self, trainer, mean_loss):
        self.best = min(self.best, mean_loss)
        self.last.append(mean_loss)
        x, rate = workshop_record(9, 99)
        ema_nll = gaussian_nll(self.ema.shadow(x), rate).item()
        # spread of the last epochs; of one epoch there is none (NaN in the first line)
        spread = torch.tensor(self.last[-4:]).var(correction=1).item() if len(self.last) > 1 else float("nan")
        if trainer.rank == 0:
            lr = trainer.optimizer.param_groups[0]["lr"]
            print(f"epoch {len(self.last):2d} nll {mean_loss:+.6f} best {self.best:+.6f} ema {ema_nll:+.6f} "
                  f"spread {spread:.4f} lr {lr:.2e}", flush=True)


class Trainer:
    def __init__(self, rank, model, optimizer, callbacks):
        self.rank, self.model, self.optimizer, self.callbacks = rank, model, optimizer, callbacks

    def step(self, x, y):
        loss = gaussian_nll(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        for cb in self.callbacks:
            cb.on_step(self, loss.detach())
        return loss.detach()

    def fit(self, epochs, batch=16):
        for epoch in range(epochs):
            x, y = workshop_record(self.rank, epoch)
            losses = torch.stack([self.step(a, b) for a, b in zip(x.split(batch), y.split(batch))])
            mean = losses.mean()
            dist.all_reduce(mean)
            for cb in self.callbacks:
                cb.on_epoch(self, mean.item() / WORLD)


def worker(rank, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    torch.manual_seed(12)
    core = RateModel()
    model = DDP(core)
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    ema = Ema(core, 0.8)
    Trainer(rank, model, optimizer, [ema, Plateau(optimizer), Report(ema)]).fit(epochs=22)
    if rank == 0:
        print(f"ema weights {sum(p.double().sum().item() for p in ema.shadow.parameters()):.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    mp.spawn(worker, args=(free,), nprocs=WORLD)
