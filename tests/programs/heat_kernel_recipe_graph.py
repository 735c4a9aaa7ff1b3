"""Cuisine of a recipe from the recipes it shares ingredients with: propagation by a heat kernel with a learned time."""
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
import torch.nn.functional as F


def recipe_graph(n=90, cuisines=3):
    g = torch.Generator().manual_seed(6)
    y = torch.randint(cuisines, (n,), generator=g)
    same = y[:, None] == y[None]
    prob = torch.where(same, 0.06, 0.05)
    upper = (torch.rand(n, n, generator=g) < prob).float().triu(1)
    adj = upper + upper.T + torch.eye(n)
    deg = adj.sum(1)
    walk = adj / deg.sqrt()[:, None] / deg.sqrt()[None]
    x = F.one_hot(y, cuisines).float() @ torch.randn(cuisines, 10, generator=g) * 1.5 + torch.randn(n, 10, generator=g)
    return x, y, walk


class HeatPropagation(nn.Module):
    def __init__(self, order=8, start=1.5):
        super().__init__()
        self.time = nn.Parameter(torch.tensor(start))
        self.register_buffer("k", torch.arange(order + 1.0))

    def coefficients(self):
        return torch.exp(self.k * torch.log(self.time) - self.time - torch.lgamma(self.k + 1))

    def forward(self, h, walk):
        out = 0.0
        for c in self.coefficients():
            out = out + c * h
            h = walk @ h
        return out


class RecipeNet(nn.Module):
    def __init__(self, d_in=10, hidden=16, cuisines=3):
        super().__init__()
        self.lift = nn.Sequential(nn.Linear(d_in, hidden), nn.Tanh(), nn.Linear(hidden, cuisines))
        self.heat = HeatPropagation()

    def forward(self, x, walk):
        return self.heat(self.lift(x), walk)


def main():
    set_seed(17)
    accelerator = Accelerator(cpu=True)
    x, y, walk = recipe_graph()
    known = torch.arange(len(y)) % 2 == 0
    model = RecipeNet()
    optimizer = torch.optim.SGD([
        {"params": model.lift.parameters(), "lr": 0.3},
        {"params": model.heat.parameters(), "lr": 0.4},
    ], momentum=0.8)
    model, optimizer = accelerator.prepare(model, optimizer)
    for epoch in range(1, 39):
        model.train()
        logits = model(x, walk)
        loss = F.cross_entropy(logits[known], y[known])
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        hit = (logits[~known].argmax(1) == y[~known]).float().mean()
        accelerator.print(f"epoch {epoch:02d} | loss {loss.item():.5f} | held out {hit.item():.3f}")
    accelerator.print("l1 of the parameters:", sum(p.abs().sum().item() for p in model.parameters()))


main()
