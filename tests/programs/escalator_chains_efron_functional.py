"""
Wear-out of escalator chains: a Cox model with Efron's ties, one depot per step.
Functional style: the parameters are a dictionary, the update is written out below.
"""
import torch
from torch import nn
from torch.func import functional_call, grad_and_value

STUDY_END = 36          # months
DEPOTS = 40


def depot_sheet(number):
    """x, month, failed.  A chain that is still running at the end of the study is censored there."""
    g = torch.Generator().manual_seed(1000 + number)
    n = 20
    x = torch.randn(n, 5, generator=g)
    hazard = torch.exp(0.8 * x[:, 0] - 0.5 * x[:, 1] + 0.3 * x[:, 2] * x[:, 3])
    life = -torch.log(torch.rand(n, generator=g)) / hazard * 20
    month = life.ceil().clamp(1, STUDY_END - 1)
    failed = torch.rand(n, generator=g) < 0.8
    running = torch.rand(n, generator=g) < 0.2
    running[0] = True
    if number == 18:        # a depot that was closed in its 30th month; the last chain had just broken
        month = month.clamp(max=28)
        month[0], failed[0] = 30, True
        running[:] = False
    month = torch.where(running, torch.tensor(float(STUDY_END)), month)
    failed = failed & ~running
    return x, month, failed


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(5, 12)
        self.score = nn.Linear(12, 1, bias=False)

    def forward(self, x):
        return self.score(torch.tanh(self.hidden(x))).squeeze(-1)


def efron(eta, month, failed):
    """Minus the partial log likelihood per failure; d chains that fail in one month share their risk set."""
    risk = eta.exp()
    total = eta.new_zeros(())
    for when in month[failed].unique():
        at_risk = (month >= when).float()
        tied = ((month == when) & failed).float()
        d = int(tied.sum())
        everyone = (risk * at_risk).sum()
        leaving = (risk * tied).sum()
        total = total + (eta * tied).sum()
        for l in range(1, d + 1):
            total = total - torch.log(everyone - l / d * leaving)
    return -total / failed.sum()


torch.manual_seed(6)
net = Hazard()
params = {k: v.detach().clone() for k, v in net.named_parameters()}
velocity = {k: torch.zeros_like(v) for k, v in params.items()}


def loss_fn(p, x, month, failed):
    eta = functional_call(net, p, (x,))
    penalty = sum(v.pow(2).sum() for v in p.values())
    return efron(eta, month, failed) + 1e-3 * penalty


step_fn = grad_and_value(loss_fn)
for depot in range(1, DEPOTS + 1):
    x, month, failed = depot_sheet(depot)
    grads, loss = step_fn(params, x, month, failed)
    velocity = {k: 0.8 * velocity[k] + grads[k] for k in params}
    params = {k: params[k] - 0.03 * velocity[k] for k in params}
    print(f"depot {depot:2d}  failures {int(failed.sum()):2d}  loss {loss.item():.7f}", flush=True)

print(f"{sum(v.abs().sum().item() for v in params.values()):.7f}", flush=True)
