"""Bi-encoder for the spare parts desk: a request finds the shelf card. In-batch and mined hard negatives, InfoNCE."""
import argparse
from dataclasses import dataclass
from typing import Iterator, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Batch(NamedTuple):
    request: Tensor
    card: Tensor
    hard: Tensor
    part: Tensor
    hard_part: Tensor


@dataclass
class Desk:
    parts: int = 24
    vocab: int = 300
    words: int = 8
    batch: int = 12

    def text(self, part: Tensor, gen: torch.Generator) -> Tensor:
        own = part[:, None] * 12 + torch.randint(0, 12, (len(part), self.words - 3), generator=gen)
        noise = torch.randint(0, self.vocab, (len(part), 3), generator=gen)
        return torch.cat([own, noise], 1)

    def batches(self, steps: int, gen: torch.Generator) -> Iterator[Batch]:
        """Requests of one morning each, so a part that breaks often comes several times."""
        for step in range(1, steps + 1):
            part = torch.randint(0, self.parts, (self.batch,), generator=gen)
            shift = torch.randint(1, 3, (self.batch,), generator=gen)
            hard_part = (part + shift) % self.parts
            if step == 25:  # the recall: everyone asks for the same valve, and the miner finds only its other cards
                part = torch.full_like(part, 7)
                hard_part = part.clone()
            yield Batch(self.text(part, gen), self.text(part, gen), self.text(hard_part, gen), part, hard_part)


class Tower(nn.Module):
    def __init__(self, vocab: int, dim: int = 32):
        super().__init__()
        self.words = nn.Embedding(vocab, dim)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.proj = nn.Linear(dim, dim)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.mix(self.words(ids))
        return F.normalize(self.proj(states.mean(1)), dim=-1)


class BiEncoder(nn.Module):
    def __init__(self, vocab: int):
        super().__init__()
        self.ask, self.shelf = Tower(vocab), Tower(vocab)
        self.log_scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, b: Batch) -> Tensor:
        q = self.ask(b.request)
        d = self.shelf(torch.cat([b.card, b.hard]))
        return self.log_scale.exp() * q @ d.T


def decoupled_info_nce(scores: Tensor, b: Batch) -> Tensor:
    """-(positive - logsumexp of the true negatives); cards of the same part are no negatives."""
    same = b.part[:, None] == torch.cat([b.part, b.hard_part])[None]
    positive = scores.diagonal()
    negatives = scores.masked_fill(same, float("-inf"))
    return (negatives.logsumexp(1) - positive).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()
    torch.manual_seed(90)
    gen = torch.Generator().manual_seed(91)
    desk = Desk()
    model = BiEncoder(desk.vocab)
    optimizer = torch.optim.NAdam(model.parameters(), lr=args.lr)
    for step, batch in enumerate(desk.batches(args.steps, gen), 1):
        scores = model(batch)
        loss = decoupled_info_nce(scores, batch)
        optimizer.zero_grad()
        loss.backward()
        print(f"step={step} loss={loss.item():.7f}", flush=True)
        optimizer.step()
    print(sum(p.detach().double().abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
