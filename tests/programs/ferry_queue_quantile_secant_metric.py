import torch
from torch.optim import Optimizer


class VariableMetric(Optimizer):
    """Rank-two updates of a dense inverse metric, step lengths lr * decay ** k."""

    def __init__(self, params, lr=1.0, decay=0.8):
        super().__init__(params, dict(lr=lr, decay=decay))
        self.leaves = self.param_groups[0]["params"]

    def _gather(self, what):
        return torch.cat([getattr(p, what).reshape(-1) if what == "grad" else p.detach().reshape(-1) for p in self.leaves])

    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        group, memory = self.param_groups[0], self.state[self.leaves[0]]
        with torch.no_grad():
            g, x = self._gather("grad"), self._gather("data")
            if not memory:
                memory.update(k=0, metric=torch.eye(len(x)))
            else:
                s, y = x - memory["x"], g - memory["g"]
                rho = 1.0 / torch.dot(y, s)
                left = torch.eye(len(x)) - rho * torch.outer(s, y)
                memory["metric"] = left @ memory["metric"] @ left.T + rho * torch.outer(s, s)
            length = group["lr"] * group["decay"] ** memory["k"]
            move = memory["metric"] @ g
            move = length * move / max(1.0, move.norm().item())
            memory.update(x=x, g=g, k=memory["k"] + 1)
            offset = 0
            for p in self.leaves:
                p.sub_(move[offset:offset + p.numel()].view_as(p))
                offset += p.numel()
        return loss


class WaitQuantile(torch.nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.zeros(columns))
        self.base = torch.nn.Parameter(torch.zeros(()))

    def forward(self, sailing):
        return sailing @ self.slope + self.base


def sailings(n=150):
    g = torch.Generator().manual_seed(2)
    hour = torch.rand(n, generator=g) * 16 + 6
    weekend = (torch.rand(n, generator=g) < 0.3).float()
    lorries = torch.poisson(torch.full((n,), 6.0), generator=g)
    wait = 4 + 1.1 * lorries + 9 * weekend + 3 * torch.cos((hour - 17) / 3) + torch.randn(n, generator=g).abs() * 4
    table = torch.stack([(hour - 14) / 5, weekend, (lorries - 6) / 2.5], 1)
    return table, wait / 10


def pinball(residual, q=0.8):
    return torch.where(residual >= 0, q * residual, (q - 1) * residual).mean()


table, wait = sailings()
model = WaitQuantile(table.shape[1])
opt = VariableMetric(model.parameters(), lr=0.6, decay=0.7)


def closure():
    opt.zero_grad()
    loss = pinball(wait - model(table))
    loss.backward()
    return loss


for i in range(30):
    loss = opt.step(closure)
    print(f"iteration {i + 1:3d}   pinball {loss.item():.6f}")
print("sum of squared coefficients", sum(float((p.detach() ** 2).sum()) for p in model.parameters()))
