"""Which tea blend will a customer order next?  Matrix factorisation with side features.

Embeddings are large, so they get sparse gradients and SparseAdam; the tower is dense (Adam).
After the warm start the blends of one garden are pulled to their garden's mean."""

import argparse
import sys

import torch
import torch.nn.functional as F
from torch import nn


class TeaTower(nn.Module):
    def __init__(self, customers, blends, gardens, dim=16):
        super().__init__()
        self.customer = nn.Embedding(customers, dim, sparse=True)
        self.blend = nn.Embedding(blends, dim, sparse=True)
        nn.init.normal_(self.customer.weight, std=0.1)
        nn.init.normal_(self.blend.weight, std=0.1)
        self.tower = nn.Sequential(nn.Linear(2 * dim + 3, 32), nn.ReLU(), nn.Linear(32, 1))
        self.gardens = gardens

    def forward(self, c, b, season):
        u, v = self.customer(c), self.blend(b)
        return (u * v).sum(-1) + self.tower(torch.cat([u, v, season], dim=-1)).squeeze(-1)

    def garden_pull(self, garden_of):
        """Mean squared distance of each blend to the centre of its garden."""
        table = self.blend.weight
        centre = torch.zeros(self.gardens, table.shape[1]).index_add(0, garden_of, table)
        count = torch.bincount(garden_of, minlength=self.gardens).clamp(min=1).unsqueeze(1)
        return (table - (centre / count)[garden_of]).square().mean()


def orders(args, gen):
    taste = torch.randn(args.customers, 4, generator=gen)
    flavour = torch.randn(args.blends, 4, generator=gen)
    garden_of = torch.randint(0, args.gardens, (args.blends,), generator=gen)
    while True:
        c = torch.randint(0, args.customers, (args.batch,), generator=gen)
        b = torch.randint(0, args.blends, (args.batch,), generator=gen)
        season = F.one_hot(torch.randint(0, 3, (args.batch,), generator=gen), 3).float()
        y = ((taste[c] * flavour[b]).sum(-1) + season[:, 0] > 0.2).float()
        yield c, b, season, y, garden_of


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--customers", type=int, default=500)
    ap.add_argument("--blends", type=int, default=180)
    ap.add_argument("--gardens", type=int, default=12)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--warm", type=int, default=18, help="steps before the garden pull sets in")
    ap.add_argument("--pull", type=float, default=0.05)
    args = ap.parse_args(argv)

    torch.manual_seed(6)
    gen = torch.Generator().manual_seed(61)
    model = TeaTower(args.customers, args.blends, args.gardens)
    sparse = torch.optim.SparseAdam(list(model.customer.parameters()) + list(model.blend.parameters()), lr=0.02)
    dense = torch.optim.Adam(model.tower.parameters(), lr=3e-3)

    stream = orders(args, gen)
    for step in range(1, args.steps + 1):
        c, b, season, y, garden_of = next(stream)
        loss = F.binary_cross_entropy_with_logits(model(c, b, season), y)
        if step > args.warm:
            loss = loss + args.pull * model.garden_pull(garden_of)
        for opt in (sparse, dense):
            opt.zero_grad()
        loss.backward()
        dense.step()
        sparse.step()
        print(f"step {step:03d} bce {loss.item():.6f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    sys.exit(main())
