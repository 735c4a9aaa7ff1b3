"""Tariff chapters of customs declarations by a mixture of experts whose experts have a capacity.

An expert that is full is closed for the remaining tokens (its logit becomes minus infinity); a token for which all are closed
passes by. The layer is recomputed in the backward pass.
"""
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass
class Settings:
    words: int = 120
    chapters: int = 6
    length: int = 12
    width: int = 32
    experts: int = 4
    capacity: float = 0.8
    batch: int = 16
    steps: int = 40
    rates: tuple = (3e-3, 1e-3)
    closed: list = field(default_factory=lambda: [3])    # an expert that is held back for later goods


class Expert(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


class CappedMixture(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.router = nn.Linear(s.width, s.experts, bias=False)
        self.experts = nn.ModuleList(Expert(s.width) for _ in range(s.experts))
        self.report = None

    def forward(self, x):
        tokens = x.flatten(0, 1)
        places = int(self.s.capacity * len(tokens) / self.s.experts)
        logits = self.router(tokens)
        closed = torch.zeros(self.s.experts)
        closed[self.s.closed] = -float("inf")
        gates = (logits + closed).softmax(-1)
        choice = gates.argmax(-1)
        out = torch.zeros_like(tokens)
        gain = []
        for k, expert in enumerate(self.experts):
            mine = (choice == k).nonzero().squeeze(1)
            order = gates[mine, k].argsort(descending=True)
            kept = mine[order[:places]]
            y = expert(tokens[kept])
            out = out.index_add(0, kept, gates[kept, k, None] * y)
            gain.append(y.detach().norm(dim=1).mean())      # nan for an expert without tokens
        self.report = torch.stack(gain)
        share = F.one_hot(choice, self.s.experts).float().mean(0)
        balance = self.s.experts * (share * gates.mean(0)).sum()
        return x + out.view_as(x), balance


class Declarations(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed = nn.Embedding(s.words, s.width, padding_idx=0)
        self.norm = nn.LayerNorm(s.width)
        self.mixture = CappedMixture(s)
        self.out = nn.Linear(s.width, s.chapters)

    def forward(self, ids):
        x = self.norm(self.embed(ids))
        x, balance = checkpoint(self.mixture, x, use_reentrant=False)
        there = (ids > 0)[..., None]
        # the largest feature over the words that are there; a blank declaration has none and gets zeros
        top = x.masked_fill(~there, -float("inf")).amax(1)
        top = torch.where(there.any(1), top, torch.zeros_like(top))
        return self.out(top), balance


def declarations(s, generator):
    chapter = torch.randint(s.chapters, (s.batch,), generator=generator)
    ids = 1 + (chapter[:, None] * 17 + torch.randint(24, (s.batch, s.length), generator=generator)) % (s.words - 1)
    length = torch.randint(0, s.length + 1, (s.batch, 1), generator=generator)
    ids[torch.arange(s.length)[None] >= length] = 0
    return ids, chapter


def main():
    torch.manual_seed(41)
    s = Settings()
    generator = torch.Generator().manual_seed(7)
    model = Declarations(s)
    routers = list(model.mixture.router.parameters())
    others = [p for n, p in model.named_parameters() if "router" not in n]
    optimizer = torch.optim.Adam([{"params": others, "lr": s.rates[0]}, {"params": routers, "lr": s.rates[1]}])
    for step in range(1, s.steps + 1):
        if step == 25:
            s.closed.clear()            # the fourth expert opens for the second half
        ids, chapter = declarations(s, generator)
        logits, balance = model(ids)
        loss = F.cross_entropy(logits, chapter) + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gains = " ".join(f"{g:.3f}" for g in model.mixture.report.tolist())
        print(f"step {step} loss {loss.item():.6f} gains {gains}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
