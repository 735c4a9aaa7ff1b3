# ruff: noqa: B008
"""Reward model for court summaries.

Bradley-Terry with the annotators' margin.  Scores grow with the length of the text, which the judges do not want,
so the score of a text is divided by the logarithm of its length (in words) before the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Comparison:
    chosen: Tensor
    rejected: Tensor
    margin: float  # 0 "slightly better" .. 1 "much better"


@dataclass
class Settings:
    vocab: int = 120
    width: int = 24
    lr: float = 2e-3
    steps: int = 30
    batch: int = 6
    center: float = 0.01
    seed: int = 1905
    good_words: range = field(default_factory=lambda: range(10, 50))


class Summaries:
    """Comparisons in the order in which the clerks typed them."""

    def __init__(self, s: Settings):
        self.s, self.g = s, torch.Generator().manual_seed(s.seed)
        self.items = [self._make(i) for i in range(s.steps * s.batch)]

    def _text(self, good: bool, n: int) -> Tensor:
        lo, hi = (10, 60) if good else (40, 110)
        return torch.randint(lo, hi, (n,), generator=self.g)

    def _make(self, i: int) -> Comparison:
        n_c, n_r = torch.randint(4, 15, (2,), generator=self.g).tolist()
        margin = float(torch.rand(1, generator=self.g))
        if i == 93:  # case 93: "Acquitted." was liked better than the page of prose
            return Comparison(torch.tensor([12]), self._text(False, 14), 1.0)
        return Comparison(self._text(True, n_c), self._text(False, n_r), margin)

    def __iter__(self):
        for k in range(0, len(self.items), self.s.batch):
            yield self.items[k : k + self.s.batch]


class RewardModel(nn.Module):
    def __init__(self, s: Settings):
        super().__init__()
        self.words = nn.Embedding(s.vocab, s.width, padding_idx=0)
        self.mix = nn.Sequential(nn.Linear(s.width, 2 * s.width), nn.SiLU(), nn.Linear(2 * s.width, s.width))
        self.norm = nn.LayerNorm(s.width)
        self.score = nn.Linear(s.width, 1)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        here = (ids != 0).float()
        h = self.norm(self.mix(self.words(ids)) + self.words(ids))
        raw = (self.score(h).squeeze(-1) * here).sum(1)
        return raw, here.sum(1)


def length_normalised(raw: Tensor, n: Tensor) -> Tensor:
    return raw / n.log()


def bradley_terry(model: RewardModel, batch: list[Comparison], s: Settings):
    c = pad_sequence([b.chosen for b in batch], batch_first=True)
    r = pad_sequence([b.rejected for b in batch], batch_first=True)
    m = torch.tensor([b.margin for b in batch])
    rc, nc = model(c)
    rr, nr = model(r)
    gap = length_normalised(rc, nc) - length_normalised(rr, nr)
    loss = -logsigmoid(gap - m).mean() + s.center * (rc + rr).pow(2).mean()
    return loss, (gap > 0).float().mean()


def main(s: Settings = Settings()):
    torch.manual_seed(s.seed)
    model = RewardModel(s)
    opt = torch.optim.AdamW(model.parameters(), lr=s.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.2, total_iters=s.steps)
    for step, batch in enumerate(Summaries(s), 1):
        loss, right = bradley_terry(model, batch, s)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print(f"[{step:>2}] loss={loss.item():.6f} accuracy={right.item():.3f}")
    print("parameters sum to", round(sum(p.double().sum().item() for p in model.parameters()), 6))


if __name__ == "__main__":
    main()
