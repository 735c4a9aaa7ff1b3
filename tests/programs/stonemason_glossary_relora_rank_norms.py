"""
ReLoRA after my own taste: a LoRA layer that is merged into its base every few steps and starts anew.
Subject: stonemasons' glossary (term -> tool). A group lasso over the ranks keeps the adapters thin.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class RankedLoRA(nn.Module):
    def __init__(self, base: nn.Linear, rank=4, alpha=8.0):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.B = nn.Parameter(1e-2 * torch.randn(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.A), self.B)

    def rank_norms(self):
        return self.B.square().sum(dim=0).sqrt()

    @torch.no_grad()
    def merge_and_restart(self):
        self.base.weight += self.scale * self.B @ self.A
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        nn.init.zeros_(self.B)


class Glossary(nn.Module):
    def __init__(self, terms=50, tools=20, dim=32):
        super().__init__()
        self.terms = nn.Embedding(terms, dim).requires_grad_(False)
        self.up = nn.Linear(dim, 64)
        self.out = nn.Linear(64, tools)

    def forward(self, pair):
        return self.out(torch.tanh(self.up(self.terms(pair).mean(1))))


def inject(model, names, **kw):
    for name in names:
        setattr(model, name, RankedLoRA(getattr(model, name), **kw))
    return [m for m in model.modules() if isinstance(m, RankedLoRA)]


def lesson(g, n=32):
    pair = torch.randint(0, 50, (n, 2), generator=g)
    return pair, pair.sum(1) // 5


def main(total=40, cycle=16, lasso=2e-3):
    torch.manual_seed(1163)
    g = torch.Generator().manual_seed(1248)
    model = Glossary()
    adapters = inject(model, ["up", "out"], rank=4)
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.Adam(params, lr=2e-2)

    for step in range(1, total + 1):
        pair, tool = lesson(g)
        ce = F.cross_entropy(model(pair), tool)
        thin = sum(a.rank_norms().sum() for a in adapters)
        loss = ce + lasso * thin
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{step:>3} loss={loss.item():.6f} ce={ce.item():.6f} norms={thin.item():.5f}")
        if step == cycle:
            for a in adapters:
                a.merge_and_restart()
            opt.state.clear()  # the old moments belong to the old factors
    print("adapters", sum(p.detach().double().sum().item() for p in params))


if __name__ == "__main__":
    main()
