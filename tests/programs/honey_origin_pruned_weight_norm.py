"""Botanical origin of honey from pollen counts. The encoder starts lazy, gets a weight norm, and dead units are pruned once:
the rows of the direction that matter least are set to zero so that the exported model can drop them."""
from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

Plan = namedtuple("Plan", "steps prune_after keep lr")
PLAN = Plan(steps=45, prune_after=21, keep=26, lr=0.02)
ORIGINS = ("heather", "lime", "rape", "chestnut")


class HoneyNet(nn.Module):
    def __init__(self, hidden=30):
        super().__init__()
        self.pollen = nn.LazyLinear(hidden)
        self.drop = nn.Identity()
        self.origin = nn.Linear(hidden, len(ORIGINS))

    def forward(self, counts):
        h = self.pollen(counts)
        return self.origin(self.drop(F.gelu(h)))


class Jar:
    """Synthetic laboratory: every origin has a pollen spectrum; counts are square-rooted as palynologists do."""

    def __init__(self, kinds=18, seed=12):
        self.g = torch.Generator().manual_seed(seed)
        self.spectra = torch.rand(len(ORIGINS), kinds, generator=self.g) * 6

    def __call__(self, n=24):
        y = torch.randint(0, len(ORIGINS), (n,), generator=self.g)
        return torch.poisson(self.spectra[y], generator=self.g).sqrt(), y


@torch.no_grad()
def prune(layer, keep):
    importance = layer.weight.abs().sum(1)
    weakest = importance.argsort()[: layer.out_features - keep]
    direction = layer.parametrizations.weight.original1
    direction[weakest] = 0.0
    return sorted(weakest.tolist())


class Trainer:
    def __init__(self, plan):
        self.plan, self.jar, self.net = plan, Jar(), HoneyNet()
        self.net(self.jar()[0])
        weight_norm(self.net.pollen, dim=0)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=plan.lr, momentum=0.9)

    def step(self):
        x, y = self.jar()
        loss = F.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def fit(self):
        for i in range(1, self.plan.steps + 1):
            print(f"jar {i:2d}  ce {self.step():.6f}")
            if i == self.plan.prune_after:
                gone = prune(self.net.pollen, self.plan.keep)
                assert len(gone) == 4
        return sum(p.detach().sum().item() for p in self.net.parameters())


if __name__ == "__main__":
    torch.manual_seed(2)
    print("final weights", round(Trainer(PLAN).fit(), 5))
