"""Which pickup is it? Embeddings of plucked strings by triplets, trained with a per-layer normalised step."""
import os
os.environ.setdefault("OMP_NUM_THREADS", "1")
import logging
import sys
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

log = logging.getLogger("pickups")
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")


class UnitRate(torch.optim.Optimizer):
    """Each tensor moves by lr times its own size, in the direction of its gradient."""

    def __init__(self, params, lr=0.02, floor=0.05):
        super().__init__(params, dict(lr=lr, floor=floor))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                size = p.norm().clamp_min(group["floor"])
                unit = p.grad / p.grad.norm()
                p.sub_(group["lr"] * size * unit)


class Strings:
    """`ways` pickups, `shots` plucks of each; some evenings only very different guitars were on the bench."""

    def __init__(self, ways=6, shots=4, features=20, seed=17):
        self.g = torch.Generator().manual_seed(seed)
        self.ways, self.shots, self.features = ways, shots, features
        self.centres = torch.randn(12, features, generator=self.g)

    def evening(self, number):
        if number % 9 == 0:   # bass against banjo: two pickups, opposite in every band
            a = self.centres[0]
            centres, spread = torch.stack([4 * a, -4 * a]), 0.05
        else:
            pick = torch.randperm(len(self.centres), generator=self.g)[:self.ways]
            centres, spread = self.centres[pick], 0.9
        labels = torch.arange(len(centres)).repeat_interleave(self.shots)
        noise = torch.randn(len(labels), self.features, generator=self.g)
        return centres[labels] + spread * noise, labels


class Embedder(nn.Module):
    def __init__(self, features=20, width=32, out=8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.LeakyReLU(0.1), nn.Linear(width, width), nn.LeakyReLU(0.1))
        self.out = nn.Linear(width, out)

    def forward(self, x):
        return F.normalize(self.out(self.body(x)), dim=-1)


def triplet_loss(z, labels, margin):
    """Mean hinge over all triplets (anchor, positive, negative) of the batch, squared distances."""
    distance = 2 - 2 * z @ z.T
    same = labels[:, None] == labels[None]
    positive = same & ~torch.eye(len(labels), dtype=torch.bool)
    gap = distance[:, :, None] - distance[:, None, :] + margin
    valid = positive[:, :, None] & ~same[:, None, :]
    hinge = F.relu(gap)[valid]
    return hinge.mean(), int((hinge > 0).sum())


class Trainer:
    def __init__(self, model, loss, optimizer):
        self.model, self.loss, self.optimizer = model, loss, optimizer

    def one(self, x, labels):
        self.optimizer.zero_grad(set_to_none=False)
        value, active = self.loss(self.model(x), labels)
        value.backward()
        self.optimizer.step()
        return value.item(), active

    def fit(self, source, evenings):
        for number in range(1, evenings + 1):
            value, active = self.one(*source.evening(number))
            log.info("evening %02d loss %.8f active %d", number, value, active)
            sys.stdout.flush()


def main():
    torch.manual_seed(17)
    model = Embedder()
    Trainer(model, partial(triplet_loss, margin=0.4), UnitRate(model.parameters())).fit(Strings(), 36)
    log.info("%.6f", sum(p.detach().abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
