"""Edible or not, and which genus: a mixture of experts over what a forager can see, smell and cut.

Router: noisy top-2. Closed experts get -inf before the softmax. Auxiliary losses are collected in a
`SideLosses` object that every layer writes to:
   balance    Switch-style, importance times load
   z          squared logsumexp of the router
   diversity  negative log-determinant of the experts' Gram matrix (is negative for long, that is fine)
"""
from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

GENERA = ["Amanita", "Boletus", "Cantharellus", "Lactarius", "Russula", "Agaricus"]


@dataclass(frozen=True)
class Recipe:
    features: int = 18
    width: int = 24
    experts: int = 8
    top: int = 2
    layers: int = 2
    batch: int = 12
    steps: int = 60
    lr: float = 6e-3
    noise: float = 0.4
    open_every: int = 8       # one more expert may be used after so many steps
    weights: tuple = (("balance", 0.05), ("z", 1e-3), ("diversity", 0.08), ("confidence", 0.3))


class SideLosses:
    def __init__(self):
        self.terms, self.metrics = defaultdict(list), defaultdict(list)

    def add(self, name, value):
        self.terms[name].append(value)

    def note(self, name, value):
        self.metrics[name].append(value.detach())

    def total(self, weights):
        return sum(w * torch.stack(self.terms[n]).mean() for n, w in weights if n in self.terms)

    def reset(self):
        self.terms.clear()
        self.metrics.clear()


class SideLossMixin:
    """Modules that write side losses; `attach_side` hands one collector to all of them."""
    side: SideLosses

    @staticmethod
    def attach_side(root, side):
        for m in root.modules():
            if isinstance(m, SideLossMixin):
                m.side = side


class Router(SideLossMixin, nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.gate = nn.Linear(cfg.width, cfg.experts, bias=False)
        self.register_buffer("closed", torch.arange(cfg.experts) >= cfg.top)

    def forward(self, h):
        logits = self.gate(h)
        if self.training:
            logits = logits + self.cfg.noise * torch.randn_like(logits)
        logits = logits.masked_fill(self.closed, float("-inf"))
        probs = logits.softmax(-1)
        top = logits.topk(self.cfg.top, dim=-1)
        sparse = torch.full_like(logits, float("-inf")).scatter(-1, top.indices, top.values)
        gates = sparse.softmax(-1)

        load = (gates > 0).float().mean(0)
        self.side.add("balance", (~self.closed).sum() * (load * probs.mean(0)).sum())
        self.side.add("z", logits.logsumexp(-1).pow(2).mean())
        # mean gate per expert where it was chosen; 0 / 0 for an expert nobody went to. Only printed.
        self.side.note("chosen_gate", gates.sum(0) / (gates > 0).sum(0))
        return gates


class Expert(nn.Sequential):
    def __init__(self, d):
        super().__init__(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))


class MoELayer(SideLossMixin, nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm = nn.LayerNorm(cfg.width)
        self.router = Router(cfg)
        self.experts = nn.ModuleList(Expert(cfg.width) for _ in range(cfg.experts))

    def forward(self, h):
        x = self.norm(h)
        gates = self.router(x)
        out = torch.zeros_like(h)
        for e, expert in enumerate(self.experts):
            rows = gates[:, e].nonzero().squeeze(-1)
            if len(rows):                      # an expert without visitors costs nothing
                out = out.index_add(0, rows, gates[rows, e, None] * expert(x[rows]))
        w = torch.stack([e[0].weight.flatten() for e in self.experts])
        gram = F.normalize(w, dim=1) @ F.normalize(w, dim=1).T
        self.side.add("diversity", -torch.logdet(gram + 0.5 * torch.eye(len(w))))
        return h + out


class Forager(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.stem = nn.Linear(cfg.features, cfg.width)
        self.layers = nn.ModuleList(MoELayer(cfg) for _ in range(cfg.layers))
        self.genus = nn.Linear(cfg.width, len(GENERA))
        self.edible = nn.Linear(cfg.width, 1)

    def forward(self, x):
        h = self.stem(x)
        for layer in self.layers:
            h = layer(h)
        return self.genus(h), self.edible(h).squeeze(-1)

    def open_experts(self, n):
        for layer in self.layers:
            layer.router.closed.copy_(torch.arange(len(layer.router.closed)) >= n)


class ForestLoss(nn.Module):
    """Cross-entropies plus what the layers left; a confidence bonus (negative) for sure answers."""

    def __init__(self, cfg, side):
        super().__init__()
        self.weights, self.side = cfg.weights, side

    def forward(self, genus, edible, y, safe):
        p = genus.softmax(-1)
        self.side.add("confidence", (p * p.clamp_min(1e-9).log()).sum(-1).mean())
        main = F.cross_entropy(genus, y) + 0.5 * F.binary_cross_entropy_with_logits(edible, safe)
        return main + self.side.total(self.weights), main


def baskets(cfg, seed):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(len(GENERA), cfg.features, generator=g) * 1.5
    while True:
        y = torch.randint(len(GENERA), (cfg.batch,), generator=g)
        x = centres[y] + torch.randn(cfg.batch, cfg.features, generator=g)
        yield x, y, ((y != 0) & (x[:, 3] < 1.5)).float()


def main():
    cfg = Recipe()
    torch.manual_seed(1010)
    side = SideLosses()
    model = Forager(cfg)
    SideLossMixin.attach_side(model, side)
    criterion = ForestLoss(cfg, side)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    data = baskets(cfg, seed=5)
    for step in range(cfg.steps):
        model.open_experts(min(cfg.experts, cfg.top + step // cfg.open_every))
        side.reset()
        x, y, safe = next(data)
        loss, main_loss = criterion(*model(x), y, safe)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        gates = " ".join(f"{v:.2f}" for v in side.metrics["chosen_gate"][0].tolist())
        print(f"{step + 1:2d} loss {loss.item():+.5f} main {main_loss.item():.5f} gates {gates}")


if __name__ == "__main__":
    main()
