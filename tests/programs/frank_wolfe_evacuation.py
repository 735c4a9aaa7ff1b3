"""Evacuation routes by Frank-Wolfe: shares of routes live on a simplex, closed roads cost infinity."""
import torch
from torch.optim import Optimizer

INF = float("inf")


class FrankWolfe(Optimizer):
    def __init__(self, params, barred):
        super().__init__(params, {"k": 0})
        self.barred = barred

    def step(self, closure):
        with torch.enable_grad():
            value = closure()
        with torch.no_grad():
            for group in self.param_groups:
                rate = 2 / (group["k"] + 2)
                group["k"] += 1
                for share in group["params"]:
                    price = share.grad.masked_fill(self.barred, INF)
                    corner = torch.nn.functional.one_hot(price.argmin(-1), share.shape[-1]).to(share)
                    memory = self.state[share]
                    memory.setdefault("best_gap", torch.tensor(INF, dtype=share.dtype))
                    gap = (share.grad * (share - corner)).sum()
                    memory["best_gap"] = torch.minimum(memory["best_gap"], gap)
                    share.lerp_(corner, rate)
        return value


torch.manual_seed(90)
TOWNS, ROUTES, ROADS = 6, 5, 14
uses = (torch.rand(TOWNS, ROUTES, ROADS, dtype=torch.float64) < 0.35).double()
free = 1 + 4 * torch.rand(ROADS, dtype=torch.float64)
capacity = 20 + 30 * torch.rand(ROADS, dtype=torch.float64)
barred = torch.zeros(TOWNS, ROUTES, dtype=torch.bool)
barred[torch.arange(TOWNS), torch.randint(ROUTES, (TOWNS,))] = True
people = 25 + 40 * torch.rand(TOWNS, 1, dtype=torch.float64)

share = torch.where(barred, 0.0, 1.0 / (ROUTES - 1)).double().requires_grad_()
fw = FrankWolfe([share], barred)


def potential():
    fw.zero_grad()
    flow = torch.einsum("tr,tra->a", people * share, uses)
    fill = (flow / capacity) ** 5
    minutes = free * (1 + 0.15 * (flow / capacity) ** 4)
    route = (uses * minutes).sum(-1).masked_fill(barred, INF)
    slowest_best = route.amin(-1).amax()
    loss = (free * (flow + 0.03 * capacity * fill)).sum() + 0.01 * slowest_best
    loss.backward()
    return loss.detach()


for hour in range(1, 27):
    if hour == 15:
        people *= 1.3                 # the second levee breaks
        fw.param_groups[0]["k"] = 0
    print(hour, fw.step(potential).item(), fw.state[share]["best_gap"].item())
print(share.sum().item())
