"""Distil boosted trees (own numpy code) for hotel cancellations into a little soft-binned network.

Column 2 (days since the guest's last stay) is blank for new guests; the trees send blanks to the left.
"""
import numpy as np
import torch
from torch import nn


def bookings(n, seed):
    r = np.random.default_rng(seed)
    lead, price, adults = r.exponential(40, n), r.normal(110, 30, n), r.integers(1, 5, n)
    last_stay = np.where(r.random(n) < 0.45, np.nan, r.exponential(200, n))
    X = np.column_stack([lead, price, last_stay, adults]).astype(np.float64)
    y = ((lead > 60) & np.isnan(last_stay)) | (r.random(n) < 0.15)
    return X, y.astype(np.float64)


class Stump:
    """Regression tree of depth one; the bounds of both leaves are kept as intervals."""

    def fit(self, X, residual):
        best = (np.inf,)
        for j in range(X.shape[1]):
            for cut in np.nanquantile(X[:, j], np.linspace(0.1, 0.9, 9)):
                right = X[:, j] > cut
                if right.sum() < 5 or (~right).sum() < 5:
                    continue
                a, b = residual[~right].mean(), residual[right].mean()
                err = ((residual - np.where(right, b, a)) ** 2).sum()
                if err < best[0]:
                    best = (err, j, [(-np.inf, cut, a), (cut, np.inf, b)])
        _, self.column, self.leaves = best
        return self

    def predict(self, X):
        x = np.where(np.isnan(X[:, self.column]), -1e30, X[:, self.column])
        return sum(value * ((x > lo) & (x <= hi)) for lo, hi, value in self.leaves)


def boost(X, y, rounds):
    raw, trees = np.zeros(len(y)), []
    for _ in range(rounds):
        trees.append(Stump().fit(X, y - 1 / (1 + np.exp(-raw))))
        raw = raw + 1.5 * trees[-1].predict(X)
    return trees


class HardStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lower):
        ctx.save_for_backward(x, lower)
        return (x > lower).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, lower = ctx.saved_tensors
        near = torch.exp(-(x - lower).abs())
        return g * near, -(g * near).where(torch.isfinite(lower), torch.zeros(())).sum(0)


class BinnedStudent(nn.Module):
    def __init__(self, edges, width):
        super().__init__()
        self.register_buffer("edges", edges)
        self.shift = nn.Parameter(torch.zeros(edges.shape[1]))
        self.net = nn.Sequential(nn.Linear(edges.numel() + edges.shape[1], width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        blank = torch.isnan(x)
        x = torch.nan_to_num(x) + self.shift
        bins = [HardStep.apply(x, e.expand_as(x)) for e in self.edges]
        return self.net(torch.cat([torch.cat(bins, 1) * ~blank.repeat(1, len(bins)), blank.float()], 1)).squeeze(1)


def distil(student, teacher, X, epochs, lr, tag):
    opt = torch.optim.Adagrad(student.parameters(), lr=lr)
    for e in range(epochs):
        order = torch.randperm(len(X))
        for chunk in order.split(100):
            opt.zero_grad()
            p = teacher[chunk]
            logit = student(X[chunk])
            entropy = -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))
            loss = (nn.functional.binary_cross_entropy_with_logits(logit, p, reduction="none") - entropy).mean()
            loss.backward()
            opt.step()
            print(f"{tag} epoch {e} kl {loss.item():.5f} shift {student.shift.abs().max().item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(8)
    X, y = bookings(400, 0)
    trees = boost(X, y, 20)
    scale = np.nanstd(X, 0)
    inputs = torch.tensor((X - np.nanmean(X, 0)) / scale, dtype=torch.float32)
    cuts = torch.tensor(np.nanquantile(inputs.numpy(), [0.2, 0.4, 0.6, 0.8], axis=0), dtype=torch.float32)
    edges = torch.cat([torch.full((1, 4), -torch.inf), cuts, torch.full((1, 4), torch.inf)])
    small = BinnedStudent(edges, 6)
    for rounds, name in ((5, "five trees"), (20, "all trees")):
        raw = sum(1.5 * t.predict(X) for t in trees[:rounds])
        margin = np.where(np.abs(raw) > 1.3, np.copysign(np.inf, raw), raw)   # decided cases become certain
        distil(small, torch.sigmoid(torch.tensor(margin, dtype=torch.float32)), inputs, 4, 0.05, name)
    print("sum of squares of the student", sum(p.detach().square().sum().item() for p in small.parameters()))
