"""Implicit-feedback factorisation for a zine shop, trained with sampled softmax.

A reader is the mean of the zines on their shelf *without* the zine that is to be
predicted (otherwise the model just copies the answer).
"""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--dim", type=int, default=256)
ap.add_argument("--readers", type=int, default=400)
ap.add_argument("--zines", type=int, default=900)
ap.add_argument("--negatives", type=int, default=400)
ap.add_argument("--batch", type=int, default=64)
ap.add_argument("--steps", type=int, default=60)
ap.add_argument("--lr", type=float, default=0.15)
args = ap.parse_args()


class RowAdagrad:
    """Adagrad with one accumulator per row, as the big recommenders have it."""

    def __init__(self, params, lr):
        self.params, self.lr = list(params), lr
        self.acc = [torch.full((p.shape[0],), 1e-4) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, a in zip(self.params, self.acc):
            if p.grad is None:
                continue
            g = p.grad
            a += g.pow(2).reshape(g.shape[0], -1).mean(1)
            scale = self.lr / a.sqrt()
            p -= scale.view(-1, *[1] * (p.dim() - 1)) * g


class Shelf(nn.Module):
    def __init__(self, zines, dim):
        super().__init__()
        self.table = nn.Embedding(zines, dim)
        nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, shelf, bought):
        total = shelf @ self.table.weight
        others = shelf.sum(1, keepdim=True) - 1
        return (total - self.table(bought)) / others


class SampledSoftmaxMF(nn.Module):
    def __init__(self, zines, dim):
        super().__init__()
        self.shelf = Shelf(zines, dim)
        self.out = nn.Embedding(zines, dim)
        self.bias = nn.Embedding(zines, 1)
        nn.init.normal_(self.out.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, shelf, bought, negatives, log_q):
        u = self.shelf(shelf, bought)
        cand = torch.cat([bought[:, None], negatives.expand(len(bought), -1)], 1)
        s = (self.out(cand) * u[:, None]).sum(-1) + self.bias(cand).squeeze(-1)
        s = s - log_q[cand]
        hit = cand == bought[:, None]
        hit[:, 0] = False
        return s.masked_fill(hit, float("-inf"))


def make_orders(g):
    pop = 1.0 / (torch.arange(args.zines) + 6.0)
    taste = torch.randint(0, 5, (args.readers,), generator=g)
    shelf = torch.zeros(args.readers, args.zines)
    for r in range(args.readers):
        n = 1 if r == 71 else int(torch.randint(3, 11, (1,), generator=g))
        w = pop * torch.where(torch.arange(args.zines) % 5 == taste[r], 6.0, 1.0)
        shelf[r, torch.multinomial(w, n, generator=g)] = 1
    return shelf, shelf.nonzero()


def main():
    g = torch.Generator().manual_seed(404)
    torch.manual_seed(404)
    shelf, orders = make_orders(g)
    count = shelf.sum(0) + 1
    q = count.pow(0.75) / count.pow(0.75).sum()
    model = SampledSoftmaxMF(args.zines, args.dim)
    opt = RowAdagrad(model.parameters(), args.lr)
    perm, at = torch.randperm(len(orders), generator=g), 0
    for step in range(1, args.steps + 1):
        if at + args.batch > len(perm):
            perm, at = torch.randperm(len(orders), generator=g), 0
        rows = orders[perm[at:at + args.batch]]
        at += args.batch
        neg = torch.multinomial(q, args.negatives, replacement=True, generator=g)
        scores = model(shelf[rows[:, 0]], rows[:, 1], neg, (args.negatives * q).log())
        loss = F.cross_entropy(scores, torch.zeros(len(rows), dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.6f}", flush=True)
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


main()
