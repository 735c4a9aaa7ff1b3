"""Assigns pottery batches to kilns and shifts (an integer programme, relaxed): one categorical choice per batch,
sampled with the Gumbel-softmax whose temperature is annealed until choices are hard."""
import torch

STUDIOS = {"north": 5, "harbour": 4, "mill": 6}    # batches per studio
SLOTS = 8                                          # kiln x shift
CAPACITY = 30.0
STEPS = 60


class UnitStep(torch.optim.Optimizer):
    """Steps of a fixed length for each tensor: the scale of the costs (EUR, kWh) must not matter. With momentum."""

    def __init__(self, params, lr=0.1, beta=0.6):
        super().__init__(params, dict(lr=lr, beta=beta))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                direction = p.grad / p.grad.norm()
                buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                buf.mul_(group["beta"]).add_(direction, alpha=1 - group["beta"])
                p.add_(buf, alpha=-group["lr"])


class Problem:
    def __init__(self, seed):
        g = torch.Generator().manual_seed(seed)
        self.size = {s: 4 + 8 * torch.rand(n, generator=g) for s, n in STUDIOS.items()}
        self.price = 0.5 + torch.rand(SLOTS, generator=g)                 # night power is cheap
        self.late = {s: torch.rand(n, SLOTS, generator=g) for s, n in STUDIOS.items()}

    def cost(self, assign):
        load = sum(self.size[s] @ assign[s] for s in STUDIOS)
        power = (load * self.price).sum()
        late = sum((assign[s] * self.late[s]).sum() for s in STUDIOS)
        over = torch.relu(load - CAPACITY).pow(2).sum()
        unbalanced = load.var()
        return power + 5 * late + 2 * over + 0.05 * unbalanced


def gumbel_softmax(logits, tau, g):
    u = torch.rand(logits.shape, generator=g).clamp(1e-6, 1 - 1e-6)
    noise = -torch.log(-torch.log(u))
    return torch.softmax((logits + noise) / tau, dim=-1)


def temperature(step, start=2.0, rate=0.78):
    return start * rate ** (step - 1)


def main():
    g = torch.Generator().manual_seed(17)
    problem = Problem(seed=4)
    logits = {s: torch.zeros(n, SLOTS, requires_grad=True) for s, n in STUDIOS.items()}
    opt = UnitStep(logits.values(), lr=0.5)
    best = float("inf")
    for step in range(1, STEPS + 1):
        tau = temperature(step)
        assign = {s: gumbel_softmax(logits[s], tau, g) for s in STUDIOS}
        loss = problem.cost(assign)
        opt.zero_grad()
        loss.backward()
        opt.step()
        best = min(best, loss.item())
        print(f"step {step:2d} tau {tau:.3e} cost {loss.item():.5f} best {best:.5f}", flush=True)
    print(f"{sum(v.detach().abs().sum() for v in logits.values()).item():.5f}", flush=True)


if __name__ == "__main__":
    main()
