"""A linear ranker trained by gradient descent with Barzilai-Borwein step sizes, written as a
torch optimizer.  Full batch; the hinge is piecewise linear."""
import torch
from torch import nn
from torch.optim import Optimizer

torch.manual_seed(2)
torch.set_num_threads(1)


class BarzilaiBorwein(Optimizer):
    """first steps by plain descent, then t = <s, s> / |<s, y>|"""

    def __init__(self, params, lr=1e-3, warmup=4, longest=0.05):
        super().__init__(params, dict(lr=lr, warmup=warmup, longest=longest))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["count"] = 0
                state["count"] += 1
                length = torch.tensor(group["lr"])
                if state["count"] > group["warmup"]:
                    s = (p - state["p"]).flatten()
                    y = (p.grad - state["g"]).flatten()
                    length = s.dot(s) / s.dot(y).abs()
                state["p"], state["g"] = p.clone(), p.grad.clone()
                p.sub_(length * p.grad)


class Ranker(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.score = nn.Linear(features, 1, bias=False)
        nn.init.normal_(self.score.weight, std=0.01)

    def forward(self, better, worse):
        return self.score(better).squeeze(-1) - self.score(worse).squeeze(-1)


def pairs(n=40, features=6):
    direction = torch.randn(features)
    a, b = torch.randn(n, features), torch.randn(n, features)
    swap = (a @ direction < b @ direction)[:, None]
    return torch.where(swap, b, a), torch.where(swap, a, b)


def hinge(margin):
    return torch.relu(1.0 - margin).mean()


def main():
    better, worse = pairs()
    model = Ranker(better.shape[1])
    opt = BarzilaiBorwein(model.parameters(), lr=0.03)
    for it in range(1, 31):
        loss = hinge(model(better, worse))
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"iteration {it:02d} hinge {loss.item():.5f}")
    print("finite", int(model.score.weight.isfinite().all()))


if __name__ == "__main__":
    main()
