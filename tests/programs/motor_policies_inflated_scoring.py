"""Claim counts of motor policies: zero-inflated Poisson, fitted by diagonal Fisher scoring."""
import torch
from torch.func import grad_and_value
from torch.optim import Optimizer

SEED = 12
CLASSES = ["hatchback", "saloon", "estate", "van", "motorhome"]
SHARE = torch.tensor([0.36, 0.28, 0.18, 0.12, 0.06])
RATE = torch.tensor([0.55, 0.7, 0.6, 1.1, 0.3])


def month_of_business(gen, n=64):
    kind = torch.multinomial(SHARE, n, replacement=True, generator=gen)
    young = (torch.rand(n, generator=gen) < 0.3).float()
    exposure = 0.3 + 0.7 * torch.rand(n, generator=gen)
    lam = exposure * RATE[kind] * torch.exp(0.6 * young) * 1.8
    claims = torch.poisson(lam, generator=gen)
    never_reports = torch.rand(n, generator=gen) < 0.3
    claims = torch.where(never_reports, torch.zeros_like(claims), claims)
    x = torch.cat([torch.nn.functional.one_hot(kind, len(CLASSES)).float(), young[:, None]], dim=1)
    return x, exposure.log(), claims


def nll(params, x, log_exposure, y):
    log_lam = x @ params["rate"] + log_exposure
    share = x @ params["inflation"]
    log_pi = torch.nn.functional.logsigmoid(share)
    log_not = torch.nn.functional.logsigmoid(-share)
    poisson = y * log_lam - log_lam.exp() - torch.lgamma(y + 1)
    silent = torch.logaddexp(log_pi, log_not - log_lam.exp())
    return -torch.where(y == 0, silent, log_not + poisson).mean()


def expected_information(params, x, log_exposure):
    pi = torch.sigmoid(x @ params["inflation"])
    lam = torch.exp(x @ params["rate"] + log_exposure)
    return {"rate": ((1 - pi) * lam) @ x.square() / len(x), "inflation": (pi * (1 - pi)) @ x.square() / len(x)}


class DiagonalScoring(Optimizer):
    """theta <- theta - lr * score / information, coefficient by coefficient."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, dict(lr=lr))

    def observe(self, p, score, information):
        p.grad = score
        self.state[p]["information"] = information

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                direction = p.grad / self.state[p]["information"]
                p.sub_(group["lr"] * direction)


def main():
    gen = torch.Generator().manual_seed(SEED)
    theta = {
        "rate": torch.nn.Parameter(torch.zeros(len(CLASSES) + 1)),
        "inflation": torch.nn.Parameter(torch.full((len(CLASSES) + 1,), -1.0)),
    }
    scoring = DiagonalScoring(theta.values(), lr=0.15)
    score_of = grad_and_value(nll)
    for month in range(1, 37):
        x, log_exposure, y = month_of_business(gen)
        frozen = {k: v.detach() for k, v in theta.items()}
        score, loss = score_of(frozen, x, log_exposure, y)
        information = expected_information(frozen, x, log_exposure)
        for k, p in theta.items():
            scoring.observe(p, score[k], information[k])
        scoring.step()
        print(f"month {month:2d}  policies {len(y)}  claims {int(y.sum()):3d}  mean nll {loss.item():.5f}")
    print("sum of squared coefficients", sum(p.detach().square().sum().item() for p in theta.values()))


if __name__ == "__main__":
    main()
