"""Soft vector quantisation of mosaic tiles (colour + texture -> 12 tile types), cooled linearly.

Small trainer with callbacks; the temperature lives on the model so that the callback can reach it.
"""
from types import SimpleNamespace
import torch
from torch import nn


class SoftCodebook(nn.Module):
    def __init__(self, codes, dim):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(codes, dim) * 0.5)
        self.tau = 1.0

    def forward(self, z):
        closeness = -(z[:, None] - self.codes).square().sum(-1)
        assign = torch.softmax(closeness / self.tau, dim=-1)
        return assign @ self.codes, assign


class MosaicAE(nn.Module):
    def __init__(self, feats=9, dim=4, codes=12):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(feats, 24), nn.GELU(), nn.Linear(24, dim))
        self.book = SoftCodebook(codes, dim)
        self.dec = nn.Sequential(nn.Linear(dim, 24), nn.GELU(), nn.Linear(24, feats))

    def forward(self, x):
        q, assign = self.book(self.enc(x))
        return self.dec(q), assign


class Cooling:
    """tau falls from `start` by equal amounts and stays at its last value after `over` steps."""

    def __init__(self, start, over):
        self.start, self.over = start, over

    def before_step(self, t):
        left = max(self.over - t.state.step, 0)
        t.model.book.tau = self.start * left / self.over


class Report:
    def after_step(self, t):
        s = t.state
        print(f"{s.step + 1:3d} tau {t.model.book.tau:.4f} recon {s.loss:.6f} used {s.used}")


class Trainer:
    def __init__(self, model, opt, callbacks):
        self.model, self.opt, self.callbacks = model, opt, callbacks
        self.state = SimpleNamespace(step=0, loss=None, used=0)

    def emit(self, event):
        for cb in self.callbacks:
            getattr(cb, event, lambda t: None)(self)

    def fit(self, batches):
        for x in batches:
            self.emit("before_step")
            recon, assign = self.model(x)
            loss = (recon - x).square().mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.state.loss = loss.item()
            self.state.used = len(assign.argmax(-1).unique())
            self.emit("after_step")
            self.state.step += 1
        return self


def tiles(n, size, gen):
    kinds = torch.randn(12, 9, generator=gen)
    for _ in range(n):
        which = torch.randint(0, 12, (size,), generator=gen)
        yield kinds[which] + 0.1 * torch.randn(size, 9, generator=gen)


def main():
    torch.manual_seed(547)
    model = MosaicAE()
    opt = torch.optim.Adam(model.parameters(), lr=6e-3)
    # 50 batches; cool over the first 32, the rest at the final temperature
    Trainer(model, opt, [Cooling(1.0, 32), Report()]).fit(tiles(50, 40, torch.Generator().manual_seed(3)))
    print("params", f"{sum(p.sum().item() for p in model.parameters()):.6f}")


main()
