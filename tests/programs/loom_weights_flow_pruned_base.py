"""Normalizing flow for the sizes of Bronze Age loom weights. The base is a mixture whose components get pruned."""
import os
os.environ.setdefault("OMP_NUM_THREADS", "1")
import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Options:
    steps: int = 50
    batch: int = 96
    layers: int = 4
    components: int = 6
    prune_every: int = 12
    seed: int = 31


class Coupling(nn.Module):
    def __init__(self, dim, flip, width=24):
        super().__init__()
        mask = (torch.arange(dim) % 2 == int(flip)).float()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(nn.Linear(dim, width), nn.SiLU(), nn.Linear(width, 2 * dim))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        scale, shift = self.net(x * self.mask).chunk(2, -1)
        scale = 1.5 * torch.tanh(scale) * (1 - self.mask)
        return x * scale.exp() + shift * (1 - self.mask), scale.sum(-1)


class MixtureBase(nn.Module):
    def __init__(self, dim, k):
        super().__init__()
        self.centres = nn.Parameter(1.5 * torch.randn(k, dim))
        self.scores = nn.Parameter(0.3 * torch.randn(k))
        self.register_buffer("alive", torch.ones(k, dtype=torch.bool))

    def log_weights(self):
        return self.scores.masked_fill(~self.alive, float("-inf")).log_softmax(0)

    def forward(self, z):
        squares = (z.unsqueeze(1) - self.centres).pow(2).sum(-1)
        normal = -0.5 * squares - 0.5 * z.shape[-1] * math.log(2 * math.pi)
        return torch.logsumexp(self.log_weights() + normal, 1)

    @torch.no_grad()
    def prune(self):
        weakest = self.log_weights().masked_fill(~self.alive, float("inf")).argmin()
        self.alive[weakest] = False


class Flow(nn.Module):
    def __init__(self, dim, opt):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(dim, i % 2) for i in range(opt.layers))
        self.base = MixtureBase(dim, opt.components)

    def forward(self, x):
        total = x.new_zeros(len(x))
        for layer in self.layers:
            x, logdet = layer(x)
            total = total + logdet
        return self.base(x) + total


class Callback:
    def before(self, trainer): ...
    def after(self, trainer, loss): ...


class Prune(Callback):
    def __init__(self, every):
        self.every = every

    def after(self, trainer, loss):
        if trainer.step % self.every == 0:
            trainer.model.base.prune()


class Report(Callback):
    def after(self, trainer, loss):
        alive = int(trainer.model.base.alive.sum())
        lowest = trainer.model.base.log_weights().min().item()
        print(f"step {trainer.step} nll {loss:.7f} alive {alive} lowest {lowest:.5f}", flush=True)


class Trainer:
    def __init__(self, model, optimizers, callbacks, opt):
        self.model, self.optimizers, self.callbacks, self.opt, self.step = model, optimizers, callbacks, opt, 0

    def fit(self, batches):
        for x in batches:
            self.step += 1
            for c in self.callbacks:
                c.before(self)
            for o in self.optimizers:
                o.zero_grad()
            loss = -self.model(x).mean()
            loss.backward()
            for o in self.optimizers:
                o.step()
            for c in self.callbacks:
                c.after(self, loss.item())


def weights(opt):
    """Height, width, bore and mass in metres and kilos: densities far above one, so the loss goes below zero."""
    g = torch.Generator().manual_seed(opt.seed)
    for _ in range(opt.steps):
        kind = torch.randint(3, (opt.batch, 1), generator=g).float()
        size = 0.1 * kind + 0.02 * torch.randn(opt.batch, 1, generator=g)
        yield torch.cat([size, 0.7 * size, 0.2 * size, 2 * size], 1) + 0.01 * torch.randn(opt.batch, 4, generator=g)


def main():
    opt = Options()
    torch.manual_seed(opt.seed)
    model = Flow(4, opt)
    optimizers = [torch.optim.Adam(model.layers.parameters(), lr=5e-3), torch.optim.SGD(model.base.parameters(), lr=0.02)]
    Trainer(model, optimizers, [Prune(opt.prune_every), Report()], opt).fit(weights(opt))
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
