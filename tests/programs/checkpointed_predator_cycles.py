"""Hare and lynx: a neural correction to Lotka-Volterra in the logarithms of both populations.

The step of the integrator is found by trial, from coarse to fine, without gradients: a step that blows up is
halved. Then the trajectory is computed again, segment by segment, under torch.utils.checkpoint.
"""
import contextlib
import gc
import sys
import weakref

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Tee:
    def __init__(self, stream):
        self.stream, self.lines = stream, 0

    def write(self, text):
        self.lines += text.count("\n")
        return self.stream.write(text)

    def flush(self):
        self.stream.flush()


class Ecology(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = nn.Parameter(torch.tensor([-0.4, -0.7, -0.5, -0.9]))
        self.residual = nn.Sequential(nn.Linear(2, 12), nn.SiLU(), nn.Linear(12, 2))
        nn.init.zeros_(self.residual[2].weight)
        nn.init.zeros_(self.residual[2].bias)

    def forward(self, z):
        birth, hunt, gain, death = torch.exp(self.rates)
        hare, lynx = torch.exp(z).unbind(-1)
        return torch.stack([birth - hunt * lynx, gain * hare - death], -1) + self.residual(torch.tanh(z))


def rk4(f, z, h):
    a = f(z)
    b = f(z + h / 2 * a)
    c = f(z + h / 2 * b)
    d = f(z + h * c)
    return z + h / 6 * (a + 2 * b + 2 * c + d)


def segment(f, z, h, n):
    for _ in range(n):
        z = rk4(f, z, h)
    return z


@torch.no_grad()
def find_step(f, z, span, tolerance=0.05):
    n = 1
    while True:
        coarse, fine = segment(f, z, span / n, n), segment(f, z, span / (2 * n), 2 * n)
        error = (coarse - fine).abs().max()
        if error < tolerance:
            return n, error
        n *= 2


def main():
    torch.manual_seed(1845)
    truth, model = Ecology(), Ecology()
    with torch.no_grad():
        truth.rates += torch.tensor([0.3, 0.2, -0.2, 0.3])
    opt = torch.optim.ASGD(model.parameters(), lr=0.02, lambd=1e-4, t0=20)
    alive = []
    for step in range(13):
        z0 = torch.randn(6, 2) * 0.5
        z0[0] = torch.tensor([2.6, 0.0])              # a year of hares
        spans = [12.0, 3.0, 1.5]
        with torch.no_grad():
            n, _ = find_step(truth, z0, 1.5)
            target = segment(truth, z0, 1.5 / (2 * n), 2 * n)
        first = segment(model, z0.clone(), spans[0], 1).detach()   # what one huge step would give
        n, error = find_step(model, z0, 1.5)
        z = z0
        for _ in range(3):
            z = checkpoint(segment, model, z, 0.5 / n, n, use_reentrant=False)
        loss = nn.functional.smooth_l1_loss(z, target)
        alive = [r for r in alive if r() is not None] + [weakref.ref(z)]
        opt.zero_grad()
        loss.backward()
        opt.step()
        shown = loss.item()
        del loss, z
        gc.collect()
        print(f"{step:2d} huber {shown:.7f} n {n} lost in one step {int((~first.isfinite()).sum())} "
              f"graphs alive {sum(r() is not None for r in alive)}")
    print("final", sum(p.detach().abs().sum().item() for p in model.parameters()))


tee = Tee(sys.stdout)
with contextlib.redirect_stdout(tee):
    main()
print("lines", tee.lines, file=sys.stderr)
