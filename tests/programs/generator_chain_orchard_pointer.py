"""Which tree to pick next: a pointer network over the trees of a row. Data flow is a chain of generators.

    walks() -> padded() -> batched() -> trained() -> reported()
"""
from itertools import islice
from typing import Iterator, List, NamedTuple

import torch
import torch.nn as nn

WIDEST = 14


class Walk(NamedTuple):
    trees: torch.Tensor      # (n, 4) ripeness, distance, height, wetness
    choice: int
    has_ladder: bool


class Batch(NamedTuple):
    trees: torch.Tensor
    absent: torch.Tensor     # True where there is no tree
    choice: torch.Tensor
    ladder: torch.Tensor


class Result(NamedTuple):
    step: int
    loss: float
    hit: float
    hit_ladder: float        # nan where nobody in the batch carries a ladder
    lowest_score: float


class Pointer(nn.Module):
    def __init__(self, d=20):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(4, d), nn.Tanh())
        self.attend = nn.MultiheadAttention(d, 2, batch_first=True)
        self.score = nn.Linear(d, 1)

    def forward(self, trees, absent):
        h = self.encode(trees)
        h = h + self.attend(h, h, h, key_padding_mask=absent, need_weights=False)[0]
        return self.score(h).squeeze(-1).masked_fill(absent, float("-inf"))


def walks(seed: int) -> Iterator[Walk]:
    g = torch.Generator().manual_seed(seed)
    taste = torch.tensor([2.0, -1.5, -0.3, -0.6])
    while True:
        n = int(torch.randint(2, WIDEST + 1, (1,), generator=g))
        trees = torch.randn(n, 4, generator=g)
        yield Walk(trees, int((trees @ taste).argmax()), bool(torch.rand(1, generator=g) < 0.12))


def padded(source: Iterator[Walk]):
    for w in source:
        n = len(w.trees)
        trees = torch.zeros(WIDEST, 4)
        trees[:n] = w.trees
        yield trees, torch.arange(WIDEST) >= n, w.choice, w.has_ladder


def batched(source, size: int) -> Iterator[Batch]:
    while chunk := list(islice(source, size)):
        t, a, c, l = zip(*chunk)
        yield Batch(torch.stack(t), torch.stack(a), torch.tensor(c), torch.tensor(l))


def trained(batches: Iterator[Batch], model: nn.Module, parts: List[torch.optim.Optimizer]) -> Iterator[Result]:
    for step, b in enumerate(batches, start=1):
        scores = model(b.trees, b.absent)
        # the score of a missing tree is -inf: exactly no probability, and no gradient
        loss = nn.functional.cross_entropy(scores, b.choice)
        for opt in parts:
            opt.zero_grad()
        loss.backward()
        for opt in parts:
            opt.step()
        right = (scores.argmax(1) == b.choice).float()
        yield Result(step, loss.item(), right.mean().item(), right[b.ladder].mean().item(), scores.min().item())


def reported(results: Iterator[Result]) -> Iterator[Result]:
    for r in results:
        print(f"{r.step:3d}  loss {r.loss:.5f}  hit {r.hit:.3f}  with ladder {r.hit_ladder:.3f}  lowest {r.lowest_score:.2f}")
        yield r


def main():
    torch.manual_seed(23)
    torch.set_num_threads(1)
    model = Pointer()
    slow = torch.optim.Adam(model.attend.parameters(), lr=1e-3)
    fast = torch.optim.Adam([*model.encode.parameters(), *model.score.parameters()], lr=1e-2)
    stream = reported(trained(batched(padded(walks(5)), 12), model, [slow, fast]))
    best = max(r.hit for r in islice(stream, 45))
    print(f"best hit rate {best:.4f}")


if __name__ == "__main__":
    main()
