# Intern project: federated learning of door faults, one client per tram depot.
# Server side uses layer-wise normalised updates (like LARS but simpler, see slides from week 3).
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import Optimizer

torch.manual_seed(11)
ROUNDS = 36
DEPOTS = ["north", "harbour", "mill", "castle", "airport"]
# from IT: planned maintenance of depot servers, (depot, first round, last round)
MAINTENANCE = [("castle", 15, 40)]


class DepotModel(nn.Module):
    """common trunk + one small calibration per depot (sensors are not mounted the same way)"""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())
        self.calibration = nn.ModuleDict({d: nn.Linear(16, 4, bias=False) for d in DEPOTS})

    def forward(self, x, depot):
        return self.calibration[depot](self.trunk(x))


class UnitLayerSGD(Optimizer):
    """every layer moves by lr, whatever the size of its gradient"""

    def __init__(self, params, lr=0.05, momentum=0.5):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:  # layer did not take part
                    continue
                state = self.state[p]
                if "buf" not in state:
                    state["buf"] = torch.zeros_like(p)
                unit = p.grad / p.grad.norm()
                state["buf"].mul_(group["momentum"]).add_(unit)
                p.add_(state["buf"], alpha=-group["lr"])


class Client:
    def __init__(self, depot, seed, n):
        g = torch.Generator().manual_seed(seed)
        self.depot, self.g = depot, g
        self.x = torch.randn(n, 12, generator=g)
        rule = torch.randn(12, 4, generator=torch.Generator().manual_seed(99)) + 0.4 * torch.randn(12, 4, generator=g)
        self.y = (self.x @ rule).argmax(1)

    def gradients(self, model):
        """runs at the depot: only gradients leave the building, never data"""
        idx = torch.randint(0, len(self.x), (24,), generator=self.g)
        loss = F.cross_entropy(model(self.x[idx], self.depot), self.y[idx])
        names = [n for n, _ in model.named_parameters() if n.startswith("trunk") or f".{self.depot}." in n]
        params = dict(model.named_parameters())
        grads = torch.autograd.grad(loss, [params[n] for n in names])
        return loss.item(), dict(zip(names, grads, strict=False)), len(idx)


def online(depot, rnd):
    return not any(d == depot and a <= rnd <= b for d, a, b in MAINTENANCE)


def aggregate(model, answers):
    """weighted sum into .grad"""
    total = sum(n for _, _, n in answers)
    params = dict(model.named_parameters())
    for _, grads, n in answers:
        for name, g in grads.items():
            p = params[name]
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad += g * (n / total)


def main():
    model = DepotModel()
    clients = [Client(d, 100 + i, 90 + 20 * i) for i, d in enumerate(DEPOTS)]
    server = UnitLayerSGD(model.parameters(), lr=0.06)
    for rnd in range(1, ROUNDS + 1):
        for group in server.param_groups:
            group["lr"] = 0.06 * (1 - rnd / (ROUNDS + 5))
        server.zero_grad(set_to_none=False)
        answers = [c.gradients(model) for c in clients if online(c.depot, rnd)]
        aggregate(model, answers)
        mean = sum(a[0] for a in answers) / len(answers)
        print(f"round {rnd:2d} | {len(answers)} depots | loss {mean:.6f}", flush=True)
        server.step()
    print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
