"""MAML over rope-knot recognition tasks (two knots each, from strain gauges), hinge loss.

The inner update is a step of fixed length along the gradient: tasks with stiff ropes have
gradients a hundred times larger, and a plain inner rate never suited them all.
"""
import torch
import torch.nn as nn
from torch.func import functional_call, grad
from tqdm import trange

GAUGES, SHOTS, QUERIES = 12, 6, 12
META_STEPS, TASKS = 50, 5
SLACK, TAUT = 0.25, 2.5         # the second half of the recordings was made under load


class KnotNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm = nn.LayerNorm(GAUGES)
        self.hidden = nn.Linear(GAUGES, width)
        self.score = nn.Linear(width, 1)

    def forward(self, x):
        return self.score(torch.tanh(self.hidden(self.norm(x)))).squeeze(-1)


class KnotTasks:
    """A family of knots with common structure: the first gauges carry most of the difference."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.direction = torch.randn(GAUGES, generator=self.g)

    def sample(self, strain):
        turn = 0.6 * torch.randn(GAUGES, generator=self.g)
        axis = self.direction + turn
        n = SHOTS + QUERIES
        y = torch.tensor([1.0, -1.0]).repeat(n // 2)
        x = strain * y[:, None] * axis + torch.randn(n, GAUGES, generator=self.g)
        return (x[:SHOTS], y[:SHOTS]), (x[SHOTS:], y[SHOTS:])


def hinge(params, model, x, y):
    return torch.relu(1 - y * functional_call(model, params, (x,))).mean()


def unit_step(params, grads, length):
    norm = torch.sqrt(sum(g.square().sum() for g in grads.values()))
    return {k: p - length * (grads[k] / norm) for k, p in params.items()}


def adapt(model, support, inner_steps=2, length=0.25):
    params = dict(model.named_parameters())
    for _ in range(inner_steps):
        grads = grad(hinge)(params, model, *support)
        params = unit_step(params, grads, length)
    return params


def main():
    torch.manual_seed(8)
    model = KnotNet()
    tasks = KnotTasks(8)
    meta = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step in trange(1, META_STEPS + 1, disable=True):
        losses = []
        for _ in range(TASKS):
            support, query = tasks.sample(SLACK if step <= 18 else TAUT)
            losses.append(hinge(adapt(model, support), model, *query))
        loss = torch.stack(losses).mean()
        meta.zero_grad()
        loss.backward()
        meta.step()
        print(f"meta {step:3d} query hinge {loss.item():.6f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()
