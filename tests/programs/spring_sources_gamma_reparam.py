"""Which of fourteen rock units feed a mineral spring? Poisson regression with sparse non-negative contributions.

Mean-field Gamma posterior, reparameterised by hand: Marsaglia and Tsang (2000) for shape a + 1 and the power-of-uniform
correction that brings it back to shape a. Gradients by torch.func, ascent by my own RMSprop.
"""
from functools import partial

import torch
from torch.func import grad_and_value

UNITS, SAMPLES, STEPS = 14, 6, 36
PRIOR_SHAPE, PRIOR_RATE = 0.03, 0.1
gen = torch.Generator().manual_seed(2000)


def observe(n=120):
    x = torch.rand(n, UNITS, generator=gen) * 2
    w = torch.zeros(UNITS)
    w[[2, 7, 11]] = torch.tensor([3.0, 1.2, 5.0])
    return x, torch.poisson(x @ w + 0.05, generator=gen)


def accepted_normals(shape, n):
    """The normals that Marsaglia-Tsang accepts for Gamma(shape + 1, 1); no gradient is needed for the test itself."""
    d = shape + 1 - 1 / 3
    c = 1 / (9 * d).sqrt()
    out = torch.zeros(n, shape.numel())
    todo = torch.ones_like(out, dtype=torch.bool)
    for _ in range(40):                     # all are accepted long before
        z = torch.randn(out.shape, generator=gen)
        u = torch.rand(out.shape, generator=gen)
        v = (1 + c * z) ** 3
        good = (v > 0) & (u.log() < 0.5 * z ** 2 + d - d * v + d * v.clamp_min(1e-30).log())
        out = torch.where(todo & good, z, out)
        todo &= ~good
    return out


def draw(shape, rate, z, u):
    d = shape + 1 - 1 / 3
    boosted = d * (1 + z / (9 * d).sqrt()) ** 3
    return boosted * u ** (1 / shape) / rate


def gamma_logpdf(logw, w, shape, rate):
    return (shape * rate.log() - torch.lgamma(shape) + (shape - 1) * logw - rate * w).sum(-1)


def negative_elbo(params, x, y, z, u):
    shape, rate = params["shape"].exp(), params["rate"].exp()
    w = draw(shape, rate, z, u)
    logw = torch.log(w)
    mean = w @ x.T + 0.05
    loglik = (y * mean.log() - mean - torch.lgamma(y + 1)).sum(-1)
    prior = gamma_logpdf(logw, w, torch.tensor(PRIOR_SHAPE), torch.tensor(PRIOR_RATE))
    entropy = -gamma_logpdf(logw, w, shape, rate)
    return -(loglik + prior + entropy).mean() / x.shape[0]


class RMSAscent:
    """Tieleman and Hinton, without torch.optim: parameters are a dict that is passed about."""

    def __init__(self, params, lr, decay=0.9):
        self.params, self.lr, self.decay = params, lr, decay
        self.square = {k: torch.zeros_like(v) for k, v in params.items()}

    @torch.no_grad()
    def step(self, grads):
        for k, g in grads.items():
            self.square[k].mul_(self.decay).addcmul_(g, g, value=1 - self.decay)
            self.params[k].sub_(self.lr * g / (self.square[k].sqrt() + 1e-6))


def main():
    x, y = observe()
    params = {"shape": torch.full((UNITS,), -0.5), "rate": torch.zeros(UNITS)}
    opt = RMSAscent(params, lr=0.25)
    for step in range(1, STEPS + 1):
        z = accepted_normals(params["shape"].exp(), SAMPLES)
        u = torch.rand(SAMPLES, UNITS, generator=gen).clamp_min(1e-7)
        grads, loss = grad_and_value(partial(negative_elbo, x=x, y=y, z=z, u=u))(params)
        print(f"{step:3d}  -elbo {loss.item():.6f}  smallest shape {params['shape'].min().exp().item():.6f}", flush=True)
        opt.step(grads)
    post = (params["shape"] - params["rate"]).exp()
    print("largest unit", int(post.nan_to_num().argmax()), flush=True)
    print(f"{sum(v.abs().sum().item() for v in params.values()):.6f}", flush=True)


if __name__ == "__main__":
    main()
