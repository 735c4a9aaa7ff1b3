"""Drift of a lighthouse lamp: periodic log-density fitted by maximum likelihood.

No classes on purpose - the whole thing is functions that return functions.
"""
import math
from functools import partial, reduce

import torch

torch.set_num_threads(1)
DT = torch.float64


def compose(*fs):
    return reduce(lambda f, g: lambda *a: g(f(*a)), fs)


def make_nights(seed, n):
    g = torch.Generator().manual_seed(seed)
    pick = torch.rand(n, generator=g, dtype=DT)
    angle = torch.where(pick < 0.6, 0.9, -1.7) + 0.02 * torch.randn(n, generator=g, dtype=DT)
    return angle


def log_i0(kappa):
    # stable for the very large concentrations that we see (1e4 and more)
    return torch.log(torch.special.i0e(kappa)) + kappa


def von_mises(angle, mu, log_kappa):
    # the line search likes to try absurd values
    kappa = log_kappa.clamp(-8.0, 14.0).exp()
    return kappa * torch.cos(angle[:, None] - mu) - math.log(2 * math.pi) - log_i0(kappa)


def mixture_nll(angle, *, mu, log_kappa, logits, alive):
    # components that were switched off get log weight -inf, logsumexp drops them
    log_w = torch.log_softmax(logits.masked_fill(~alive, float("-inf")), dim=0)
    return -(torch.logsumexp(von_mises(angle, mu, log_kappa) + log_w, dim=1)).sum()


def fitter(loss_of, params, *, lr, inner):
    opt = torch.optim.LBFGS(params, lr=lr, max_iter=inner, line_search_fn="strong_wolfe")

    def step(batch):
        seen = []

        def closure():
            opt.zero_grad()
            loss = loss_of(batch)
            loss.backward()
            seen.append(loss.item())
            return loss

        opt.step(closure)
        return seen

    return step


def reporter(fmt):
    count = 0

    def report(values):
        nonlocal count
        count += 1
        print(fmt.format(count, values[0], values[-1], len(values)))
        return values[-1]

    return report


def main():
    angle = make_nights(9, 400)
    mu = torch.tensor([0.5, -1.0, 2.0, 2.5], dtype=DT, requires_grad=True)
    log_kappa = torch.full((4,), 1.0, dtype=DT, requires_grad=True)
    logits = torch.zeros(4, dtype=DT, requires_grad=True)
    alive = torch.tensor([True, True, True, False])

    loss_of = partial(mixture_nll, mu=mu, log_kappa=log_kappa, logits=logits, alive=alive)
    ridge = lambda b: loss_of(b) + 1e-3 * log_kappa.pow(2).sum() + 1e-3 * (mu ** 2).sum() + 1e-3 * (logits ** 2).sum()
    night = compose(fitter(ridge, [mu, log_kappa, logits], lr=1.0, inner=4),
                    reporter("night {:2d}: {:+.6f} -> {:+.6f} in {} evaluations"))
    # the density is a sharp peak, so the log-likelihood ends far above zero
    for _ in range(14):
        last = night(angle)
    print("kappa", " ".join(f"{k:.3e}" for k in log_kappa.detach().exp().tolist()))
    print("nats per night", f"{-last / len(angle):.6f}")


main()
