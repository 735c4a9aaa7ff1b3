"""minilora: low-rank adapters in one file, demonstrated on clause classification of notarial deeds.

Adapters are merged for evaluation (one matmul instead of three) and unmerged afterwards.
"""
import argparse
import math
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

CLAUSES = ("sale", "lease", "dowry", "mortgage", "testament")


@dataclass
class LoraConfig:
    r: int = 4
    alpha: float = 8.0
    targets: tuple = field(default=("q", "v", "up"))


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear, cfg: LoraConfig):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.empty(cfg.r, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, cfg.r))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.scale, self.merged = cfg.alpha / cfg.r, False

    @torch.no_grad()
    def merge(self):
        if not self.merged:
            self.base.weight += self.scale * self.B @ self.A
            self.merged = True

    @torch.no_grad()
    def unmerge(self):
        if self.merged:
            self.base.weight -= self.scale * self.B @ self.A
            self.merged = False

    def forward(self, x):
        y = self.base(x)
        if self.merged:
            return y
        return y + self.scale * F.linear(F.linear(x, self.A), self.B)


def inject(model: nn.Module, cfg: LoraConfig):
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name in cfg.targets:
                setattr(parent, name, LoraLinear(child, cfg))
    return [p for p in model.parameters() if p.requires_grad]


def adapters(model):
    return [m for m in model.modules() if isinstance(m, LoraLinear)]


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        h = self.n1(x)
        x = x + F.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class DeedReader(nn.Module):
    def __init__(self, vocab=120, d=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.layers = nn.Sequential(Layer(d), Layer(d))
        self.cls = nn.Linear(d, len(CLAUSES))

    def forward(self, ids):
        return self.cls(self.layers(self.emb(ids)).mean(1))


def deeds(n, gen):
    y = torch.randint(len(CLAUSES), (n,), generator=gen)
    ids = torch.randint(120, (n, 20), generator=gen)
    ids[:, ::3] = y[:, None] * 24 + ids[:, ::3] % 24        # formulaic words of each clause
    return ids, y


@torch.no_grad()
def evaluate(model, ids, y, best, patience_floor=0.02):
    """Merged evaluation in chunks; gives up early when the first chunks are much worse than the best so far."""
    for a in adapters(model):
        a.merge()
    total = 0.0
    for i in range(0, len(ids), 16):
        total += F.cross_entropy(model(ids[i:i + 16]), y[i:i + 16], reduction="sum").item()
        if i >= 32 and total / (i + 16) > best + patience_floor:
            return total / (i + 16)
    for a in adapters(model):
        a.unmerge()
    return total / len(ids)


def train(args):
    gen = torch.Generator().manual_seed(args.seed)
    torch.manual_seed(args.seed)
    model = DeedReader()
    params = inject(model, LoraConfig(r=args.rank))
    opt = torch.optim.AdamW(params, lr=args.lr)
    val, best = deeds(96, gen), float("inf")
    for step in range(1, args.steps + 1):
        if step == 24:      # second notary's office: the hand is another, clauses are shuffled
            opt.param_groups[0]["lr"] *= 6
        ids, y = deeds(16, gen)
        if step >= 24:
            y = (y + 2) % len(CLAUSES)
        loss = F.cross_entropy(model(ids), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step:3d}  loss {loss.item():.5f}")
        if step % args.eval_every == 0:
            v = evaluate(model, *val, best)
            best = min(best, v)
            print(f"          val {v:.5f}  best {best:.5f}")
    print("checksum", sum(p.double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=48)
    ap.add_argument("--rank", type=int, default=4)
    ap.add_argument("--lr", type=float, default=1e-2)
    ap.add_argument("--eval-every", type=int, default=6)
    ap.add_argument("--seed", type=int, default=11)
    train(ap.parse_args())
