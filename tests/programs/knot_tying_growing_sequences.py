"""Next-move prediction on knot-tying moves, with a curriculum: 4, 8, 16, 32, 64 moves.

The loss is the negative log likelihood of the *whole* sequence (summed over time, averaged over the batch), so it
doubles at each stage. Attention has -inf above the diagonal. Tokens that may not follow each other by the rules of
the loop ("forbidden") get a logit of -inf; they never occur as targets.
"""
import argparse
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

MOVES = ["over", "under", "loop", "tuck", "pull", "turn", "hold"]
FORBIDDEN = [("over", "over"), ("under", "under"), ("pull", "tuck"), ("hold", "hold")]


@dataclass
class Stage:
    length: int
    steps: int
    batch: int


@dataclass
class Plan:
    stages: list = field(default_factory=lambda: [Stage(4, 12, 32), Stage(8, 12, 32), Stage(16, 12, 16),
                                                  Stage(32, 12, 16), Stage(64, 10, 8)])
    lr: float = 3e-3
    width: int = 32


def rules():
    allowed = torch.ones(len(MOVES), len(MOVES), dtype=torch.bool)
    for a, b in FORBIDDEN:
        allowed[MOVES.index(a), MOVES.index(b)] = False
    return allowed


def tie(batch, length, allowed, table):
    """Markov chain over the moves that respects the rules."""
    seq = [torch.randint(0, len(MOVES), (batch,))]
    for _ in range(length):
        p = (table[seq[-1]] * allowed[seq[-1]]).float()
        seq.append(torch.multinomial(p, 1).squeeze(1))
    return torch.stack(seq, 1)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x):
        t, d = x.shape[1:]
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        causal = torch.full((t, t), float("-inf")).triu(1)
        att = (q @ k.transpose(1, 2) / d ** 0.5 + causal).softmax(-1)
        x = x + self.out(att @ v)
        return x + self.ff(self.n2(x))


class KnotLM(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.tok, self.pos = nn.Embedding(len(MOVES), d), nn.Embedding(64, d)
        self.block, self.head = Block(d), nn.Linear(d, len(MOVES))

    def forward(self, ids, allowed):
        h = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        logits = self.head(self.block(h))
        return logits.masked_fill(~allowed[ids], float("-inf"))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=8)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    plan, allowed = Plan(), rules()
    table = torch.rand(len(MOVES), len(MOVES)).pow(3) + 0.02
    model = KnotLM(plan.width)
    opt = torch.optim.Adam(model.parameters(), lr=plan.lr)
    n = 0
    for s, stage in enumerate(plan.stages):
        print(f"-- stage {s}: {stage.length} moves")
        for _ in range(stage.steps):
            seq = tie(stage.batch, stage.length, allowed, table)
            logits = model(seq[:, :-1], allowed)
            nll = F.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten(), reduction="sum") / stage.batch
            opt.zero_grad()
            nll.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            n += 1
            print(f"{n:3d} nll/sequence {nll.item():.5f}  per move {nll.item() / stage.length:.5f}")
    print(f"checksum {sum(p.double().sum().item() for p in model.parameters()):.5f}")


main()
