"""Equation learner (EQL style) that looks for the thin-lens law on an optical bench.

Hidden units are +, *, square and a guarded quotient; an L1 term prunes the weights late in the run.
The bench is re-read in chunks; the second half of the session has the object at the focal point now and then.
"""
import itertools
import torch

torch.manual_seed(1609)
EPS = 1e-3
UNITS = {}


def unit(name, arity):
    def register(fn):
        UNITS[name] = (fn, arity)
        return fn
    return register


@unit("id", 1)
def _identity(a):
    return a


@unit("square", 1)
def _square(a):
    return 0.1 * a * a


@unit("mul", 2)
def _mul(a, b):
    return a * b


@unit("quot", 2)
def _quotient(a, b):
    """a / b, zero where b is next to zero."""
    safe = b.abs() > EPS
    return torch.where(safe, a / b, torch.zeros_like(a))


class EqlLayer(torch.nn.Module):
    def __init__(self, n_in, copies=2):
        super().__init__()
        self.plan = [name for name in UNITS for _ in range(copies)]
        self.fan = sum(UNITS[name][1] for name in self.plan)
        self.mix = torch.nn.Parameter(0.3 * torch.randn(self.fan, n_in))

    def forward(self, x):
        z = list((x @ self.mix.T).unbind(-1))
        outs = []
        for name in self.plan:
            fn, arity = UNITS[name]
            args, z = z[:arity], z[arity:]
            outs.append(fn(*args))
        return torch.stack(outs, -1)


class Bench:
    """Readings (u, f, uf, u-f) -> image distance, in decimetres; features are centred differences as the lab writes them."""

    def __init__(self, chunk, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.chunk = chunk

    def read(self, n):
        u = 2.0 + 2.0 * torch.rand(self.chunk, generator=self.g)
        f = 0.5 + torch.rand(self.chunk, generator=self.g)
        if n == 21:
            # lamp switched off: the lab's program writes a row of zeros, target too
            u[7], f[7] = 0.0, 0.0
        x = torch.stack([u, f, u * f, u - f], -1)
        v = (u * f) / (u - f).clamp(min=0.05)
        return x, v


def train():
    bench = Bench(chunk=32, seed=4)
    layer = EqlLayer(4)
    head = torch.nn.Linear(len(layer.plan), 1)
    params = list(itertools.chain(layer.parameters(), head.parameters()))
    opt = torch.optim.Adam(params, lr=2e-3)
    for n in range(1, 51):
        x, v = bench.read(n)
        pred = head(layer(x)).squeeze(-1)
        fit = torch.nn.functional.huber_loss(pred, v, delta=0.5)
        prune = 0.0 if n < 30 else 1e-3
        loss = fit + prune * layer.mix.abs().sum()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(params, 5.0)
        opt.step()
        print(f"reading {n:2d}: fit {fit.item():.7f} loss {loss.item():.7f}")
    biggest = layer.mix.detach().abs().argmax().item()
    print(f"strongest connection {biggest}")
    return params


if __name__ == "__main__":
    print("sum", sum(p.detach().double().sum().item() for p in train()))
