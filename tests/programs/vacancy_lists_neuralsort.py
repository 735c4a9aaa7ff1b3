"""Order eight vacancies for a job seeker as recruiters did: differentiable sorting, cross entropy against their order."""
from dataclasses import dataclass

import torch
from torch import nn, Tensor


@dataclass
class Plan:
    seekers: int = 120
    per_list: int = 8
    features: int = 10
    rounds: int = 34
    batch: int = 20
    sharpen_over: int = 22
    lr: float = 4e-3


class RelaxedSort(nn.Module):
    """Rows of log-probabilities: which item stands at place 1, 2, ... of the descending order."""

    def __init__(self, length: int):
        super().__init__()
        self.temperature = 1.0
        self.register_buffer("slope", length + 1 - 2 * torch.arange(1, length + 1).float())

    def forward(self, s: Tensor) -> Tensor:
        spread = (s[:, :, None] - s[:, None, :]).abs().sum(dim=2)
        pull = self.slope[None, :, None] * s[:, None, :] - spread[:, None, :]
        return torch.log_softmax(pull / self.temperature, dim=-1)


class Recommender(nn.Module):
    def __init__(self, plan: Plan):
        super().__init__()
        self.scorer = nn.Sequential(nn.Linear(plan.features, 32), nn.SiLU(), nn.Linear(32, 1), nn.Tanh())
        self.order = RelaxedSort(plan.per_list)

    def forward(self, x: Tensor) -> Tensor:
        return self.order(self.scorer(x).squeeze(-1))


def make_lists(plan: Plan):
    g = torch.Generator().manual_seed(2718)
    x = torch.randn(plan.seekers, plan.per_list, plan.features, generator=g)
    taste = torch.randn(plan.features, generator=g)
    merit = x @ taste + 0.5 * x[..., 0] * x[..., 1] + 0.2 * torch.randn(plan.seekers, plan.per_list, generator=g)
    return x, merit.argsort(dim=1, descending=True)


def fit(plan: Plan) -> Recommender:
    torch.manual_seed(5)
    torch.set_num_threads(1)
    x, order = make_lists(plan)
    model = Recommender(plan)
    adam = torch.optim.Adam(model.parameters(), lr=plan.lr)
    for r in range(plan.rounds):
        model.order.temperature = max(0.0, 1.0 - r / plan.sharpen_over)
        rows = torch.randperm(plan.seekers)[: plan.batch]
        logp = model(x[rows])
        loss = -logp.gather(2, order[rows][:, :, None]).mean()
        adam.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        first = (logp[:, 0].argmax(1) == order[rows][:, 0]).double().mean()
        print(f"round {r + 1:02d}  cross entropy {loss.item():.5f}  best vacancy first {first.item():.2f}")
    return model


if __name__ == "__main__":
    model = fit(Plan())
    print("weights, sum of squares:", round(sum(float(p.detach().pow(2).sum()) for p in model.parameters()), 6))
