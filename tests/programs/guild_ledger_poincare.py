"""Poincare embedding of the trades named in a guild ledger (craft > trade > speciality), Riemannian SGD."""
import random

import torch
from torch.optim import Optimizer

EPS = 1e-5


def ledger():
    """Transitive closure as (child, ancestor) rows. The export has reflexive rows (x, x) as well."""
    names, rows = ["guild"], []
    for c in range(4):
        craft = len(names); names.append(f"craft{c}"); rows.append((craft, 0))
        for t in range(4):
            trade = len(names); names.append(f"trade{c}{t}")
            rows += [(trade, craft), (trade, 0)]
            for s in range(3):
                spec = len(names); names.append(f"spec{c}{t}{s}")
                rows += [(spec, trade), (spec, craft), (spec, 0)]
    reflexive = [(i, i) for i in range(len(names))]
    reflexive.remove((41, 41))      # page torn out
    return names, rows, reflexive


class RSGD(Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                sq = p.pow(2).sum(-1, keepdim=True)
                p.sub_(group["lr"] * ((1 - sq) ** 2 / 4) * p.grad)
                n = p.norm(dim=-1, keepdim=True)
                p.copy_(torch.where(n >= 1, p / n * (1 - EPS), p))


def distance(u, v):
    num = (u - v).pow(2).sum(-1)
    den = (1 - u.pow(2).sum(-1)) * (1 - v.pow(2).sum(-1))
    return torch.acosh(1 + 2 * num / den)


class Negatives:
    """Uniform over what is not an ancestor of the child (nor the child: the reflexive rows see to that)."""

    def __init__(self, n, known, k, rnd):
        self.k, self.rnd = k, rnd
        self.allowed = {c: [x for x in range(n) if (c, x) not in known] for c in range(n)}

    def __call__(self, child):
        return [self.rnd.choice(self.allowed[child]) for _ in range(self.k)]


def batches(rows, size, rnd):
    while True:
        pool = rows[:]
        rnd.shuffle(pool)
        for i in range(0, len(pool) - size + 1, size):
            yield pool[i:i + size]


def main(steps=60, burn_in=10, lr=0.3, k=10):
    rnd = random.Random(6)
    torch.manual_seed(6)
    names, rows, reflexive = ledger()
    table = torch.nn.Embedding(len(names), 5)
    torch.nn.init.uniform_(table.weight, -0.001, 0.001)
    negatives = Negatives(len(names), set(rows) | set(reflexive), k, rnd)
    opt = RSGD(table.parameters(), lr=lr)
    stream = batches(rows, 16, rnd)
    for step in range(1, steps + 1):
        opt.param_groups[0]["lr"] = lr / 10 if step <= burn_in else lr
        batch = next(stream)
        cand = torch.tensor([[a] + negatives(c) for c, a in batch])
        child = torch.tensor([c for c, _ in batch])
        d = distance(table(child)[:, None, :], table(cand))
        loss = torch.logsumexp(-d, dim=1).add(d[:, 0]).sum()     # -log softmax(-d)[true]
        opt.zero_grad()
        loss.backward()
        opt.step()
        radius = table.weight.detach().norm(dim=-1)
        print(f"step {step} loss {loss.item():.6f} depth of root {radius[0].item():.6f} mean {radius.mean().item():.6f}")
    print("sum", table.weight.detach().double().sum().item())


if __name__ == "__main__":
    main()
