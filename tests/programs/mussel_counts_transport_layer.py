"""Where do mussel larvae settle? A matching layer (entropic optimal transport, log domain) between release sites and reefs.

Parameters are a plain dict: torch.func does the differentiation, and the update is a line of its own."""
import torch
from torch import nn
from torch.func import functional_call, grad_and_value

SITES, REEFS, EPS, ROUNDS = 7, 9, 0.3, 12
DAYS, LR = 50, 0.15


class Cost(nn.Module):
    """Embeds sites and reefs with the day's current; the cost is the squared distance."""

    def __init__(self, dim=6):
        super().__init__()
        self.site = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, dim))
        self.reef = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, dim))

    def forward(self, sites, reefs):
        a, b = self.site(sites), self.reef(reefs)
        return (a[:, None, :] - b[None, :, :]).pow(2).sum(-1)


class Matching(nn.Module):
    def __init__(self):
        super().__init__()
        self.cost = Cost()

    def forward(self, sites, reefs, log_a, log_b):
        score = -self.cost(sites, reefs) / EPS
        u = torch.zeros_like(log_a)
        v = torch.zeros_like(log_b)
        for _ in range(ROUNDS):
            u = log_a - torch.logsumexp(score + v[None, :], 1)
            v = log_b - torch.logsumexp(score + u[:, None], 0)
        return score + u[:, None] + v[None, :]          # log of the plan


def simulate(day, gen, places):
    """Counts of larvae released and settled, and the drift that the buoys saw on that day."""
    site_xy, reef_xy = places
    drift = 0.5 * torch.randn(2, generator=gen)
    spread = torch.exp(-((site_xy + drift)[:, None] - reef_xy[None]).pow(2).sum(-1))
    rate = 3 + 20 * torch.rand(SITES, generator=gen)
    released = torch.poisson(rate, generator=gen)
    if day in (17, 34):
        released[day % SITES] = 0                       # the boat did not reach this site
    flow = released[:, None] * spread / spread.sum(1, keepdim=True)
    sites = torch.cat([site_xy, drift.expand(SITES, 2)], -1)
    reefs = torch.cat([reef_xy, drift.expand(REEFS, 2)], -1)
    return sites, reefs, flow


def objective(params, model, day):
    sites, reefs, flow = day
    truth = flow / flow.sum()
    log_a, log_b = truth.sum(1).log(), truth.sum(0).log()
    log_plan = functional_call(model, params, (sites, reefs, log_a, log_b))
    # relative entropy of the plan to what was observed, from both sides
    plan = log_plan.exp()
    reverse = (plan * (log_plan - (truth + 1e-6).log())).sum()
    square = (plan - truth).pow(2).sum()
    return reverse + 10.0 * square


def clipped(grads, limit=1.0):
    norm = torch.sqrt(sum(g.pow(2).sum() for g in grads.values()))
    factor = torch.minimum(torch.ones(()), limit / (norm + 1e-6))
    return {k: g * factor for k, g in grads.items()}, norm


def main():
    torch.manual_seed(12)
    gen = torch.Generator().manual_seed(40)
    places = torch.randn(SITES, 2, generator=gen), torch.randn(REEFS, 2, generator=gen)
    model = Matching()
    params = {k: v.detach().clone() for k, v in model.named_parameters()}
    step_of = grad_and_value(objective)
    for day in range(1, DAYS + 1):
        grads, loss = step_of(params, model, simulate(day, gen, places))
        grads, norm = clipped(grads)
        print(f"day {day} loss {loss.item():.8f} gradient {norm.item():.6f}", flush=True)
        params = {k: p - LR * grads[k] for k, p in params.items()}
    print("sum of |w|:", sum(p.abs().sum() for p in params.values()).item(), flush=True)


if __name__ == "__main__":
    main()
