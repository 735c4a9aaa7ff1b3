"""Saddle fitting from pressure mats: four targets, weighted by learned log-variances
(Kendall et al. 2018).  The total is negative after a while, that is how it should be."""
import math

import torch
from torch import nn

torch.manual_seed(3)
torch.set_num_threads(1)

CFG = {
    "heads": {
        "gullet": {"dim": 1, "kind": "l2"},
        "panel": {"dim": 4, "kind": "l2"},
        "tree": {"dim": 3, "kind": "ce"},
        "lame": {"dim": 1, "kind": "bce"},
    },
    "steps": 70,
    "batch": 40,
    "lr": {"net": 5e-3, "s": 8e-2},
}

KINDS = {
    "l2": lambda o, t: 0.5 * (o - t).square().mean(),
    "ce": lambda o, t: nn.functional.cross_entropy(o, t),
    "bce": lambda o, t: nn.functional.binary_cross_entropy_with_logits(o.squeeze(-1), t),
}


class Saddle(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 48), nn.SiLU(), nn.LayerNorm(48))
        self.heads = nn.ModuleDict({k: nn.Linear(48, h["dim"]) for k, h in heads.items()})
        self.s = nn.ParameterDict({k: nn.Parameter(torch.zeros(())) for k in heads})

    def forward(self, mat):
        z = self.body(mat)
        return {k: h(z) for k, h in self.heads.items()}


def horses(step, n):
    g = torch.Generator().manual_seed(step)
    mat = torch.randn(n, 20, generator=g)
    y = {
        "gullet": 0.02 * mat[:, :1],
        "panel": 0.05 * torch.stack([mat[:, i] - mat[:, i + 4] for i in range(4)], 1),
        "tree": mat[:, 8:11].argmax(1),
        "lame": (mat[:, 12] > 0.8).float(),
    }
    # the vet comes every other week: in between nobody is labelled
    labelled = torch.rand(n, generator=g) < (0.7 if step % 6 < 3 else 0.0)
    return mat, y, {"lame": labelled}


def weigh(out, y, rows, s):
    total, raw = 0.0, {}
    for k, h in CFG["heads"].items():
        sel = rows.get(k)
        o, t = (out[k], y[k]) if sel is None else (out[k][sel], y[k][sel])
        loss = KINDS[h["kind"]](o, t)              # nan for an empty selection ...
        raw[k] = loss.item()
        if t.shape[0] == 0:
            continue                               # ... which is only shown, never added
        total = total + torch.exp(-s[k]) * loss + 0.5 * s[k]
    return total, raw


def main():
    net = Saddle(CFG["heads"])
    opt = torch.optim.AdamW([
        {"params": [*net.body.parameters(), *net.heads.parameters()], "lr": CFG["lr"]["net"]},
        {"params": list(net.s.values()), "lr": CFG["lr"]["s"], "weight_decay": 0.0},
    ])
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (i + 1) / 8))
    for step in range(CFG["steps"]):
        mat, y, rows = horses(step, CFG["batch"])
        total, raw = weigh(net(mat), y, rows, net.s)
        opt.zero_grad()
        total.backward()
        opt.step()
        warm.step()
        if step % 2 == 1:
            print(f"{step + 1:3d} total {total.item():+.5f} | " + " ".join(f"{k}={v:.4f}" for k, v in raw.items()))
    print("sigmas", {k: round(math.exp(0.5 * v.item()), 4) for k, v in net.s.items()})


main()
