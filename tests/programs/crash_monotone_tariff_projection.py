"""A monotone tariff curve: the weights are projected onto the non-negative ones."""
import torch
from torch import nn


class Tariff(nn.Module):
    def __init__(self):
        super().__init__()
        self.lower = nn.Linear(3, 9)
        self.upper = nn.Linear(9, 1)
        for layer in (self.lower, self.upper):
            nn.init.uniform_(layer.weight, 0.1, 0.4)

    def forward(self, usage):
        return self.upper(torch.sigmoid(self.lower(usage)))

    @torch.no_grad()
    def project(self):
        for layer in (self.lower, self.upper):
            if (layer.weight < 0).any():
                layer.weight.clamp_(min=0)


def train(iterations=30):
    torch.manual_seed(17)
    tariff = Tariff()
    sgd = torch.optim.SGD(tariff.parameters(), lr=0.008, momentum=0.8, nesterov=True)
    usage = torch.rand(64, 3)
    price = 0.2 + 0.5 * usage[:, :1] ** 2
    for it in range(1, iterations + 1):
        batch = torch.randperm(64)[:16]
        loss = (tariff(usage[batch]) - price[batch]).pow(2).mean()
        print("iteration", it, loss.item(), flush=True)
        tariff.project()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return sum(p.sum().item() for p in tariff.parameters())


print(train())
