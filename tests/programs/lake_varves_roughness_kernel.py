"""Gaussian process regression of grain size down a core of lake varves.

The kernel is the powered exponential  s2 * exp(-(|d| / l) ** gamma)  with 0 < gamma < 2: gamma says how rough the record is.
Hyperparameters are fitted by the marginal likelihood of mini-batches (runs of neighbouring slices), in double precision."""
import math

import torch

torch.set_default_dtype(torch.float64)


def ou_like_core(n, gen):
    """A rough record: a slow trend, plus a random walk that is pulled back quickly."""
    depth = torch.cumsum(0.02 + 0.06 * torch.rand(n, generator=gen), 0)
    walk, value = [], 0.0
    for shock in torch.randn(n, generator=gen).tolist():
        value = 0.35 * value + shock
        walk.append(value)
    grain = 0.5 * torch.sin(depth / 1.5) + torch.tensor(walk)
    return depth, (grain - grain.mean()) / grain.std()


class PoweredExponential(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.raw_gamma = torch.nn.Parameter(torch.tensor(0.62))
        self.log_length = torch.nn.Parameter(torch.tensor(-0.7))
        self.log_scale = torch.nn.Parameter(torch.tensor(0.0))

    @property
    def gamma(self):
        return 2 * torch.sigmoid(self.raw_gamma)

    def forward(self, a, b):
        ratio = (a[:, None] - b[None, :]).abs() / self.log_length.exp()
        return self.log_scale.exp() * torch.exp(-ratio.pow(self.gamma))


class MarginalLikelihood(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel
        self.log_noise = torch.nn.Parameter(torch.tensor(-2.0))
        self.mean = torch.nn.Parameter(torch.tensor(0.0))

    def forward(self, depth, y):
        cov = self.kernel(depth, depth)
        cov = cov + (self.log_noise.exp() + 1e-6) * torch.eye(len(depth))
        chol, _ = torch.linalg.cholesky_ex(cov)
        resid = (y - self.mean)[:, None]
        alpha = torch.cholesky_solve(resid, chol)
        fit = 0.5 * (resid * alpha).sum()
        logdet = chol.diagonal().log().sum()
        return (fit + logdet) / len(depth) + 0.5 * math.log(2 * math.pi)


def slices(n, size, gen):
    while True:
        start = torch.randint(n - size, (1,), generator=gen).item()
        yield torch.arange(start, start + size)


def main(steps=60, size=32):
    gen = torch.Generator().manual_seed(8)
    depth, y = ou_like_core(320, gen)
    model = MarginalLikelihood(PoweredExponential())
    opt = torch.optim.Adam(model.parameters(), lr=0.03)
    batches = slices(len(depth), size, gen)
    for step in range(1, steps + 1):
        idx = next(batches)
        gamma = model.kernel.gamma.item()
        nlml = model(depth[idx], y[idx])
        opt.zero_grad()
        nlml.backward()
        opt.step()
        print(f"{step:3d} gamma {gamma:.6f} nlml {nlml.item():.8f}", flush=True)
    print(sum(p.abs().item() for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main()
