"""Distil the big tasting-note model into one that runs on the till.

CONFIG drives everything.  The teacher's temperature is "steeped": it swings down and
up again so that the pupil sees soft and sharp targets in turn.
"""

import math

import torch
import torch.nn as nn

CONFIG = {
    "seed": 88,
    "vocab": 60,
    "steps": 40,
    "batch": 6,
    "length": 14,
    "lr": 2.5e-3,
    "teacher": {"dim": 96, "layers": 2},
    "pupil": {"dim": 24, "layers": 1},
    "steep": {"hot": 3.0, "cold": 0.01, "period": 52, "floor_at": 26},
}

REGISTRY = {}


def register(name):
    def keep(fn):
        REGISTRY[name] = fn
        return fn

    return keep


class NoteModel(nn.Module):
    def __init__(self, vocab, dim, layers):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.core = nn.LSTM(dim, dim, layers, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.core(self.embed(ids))[0])


@register("temperature")
def temperature(step, cfg):
    """cosine swing between hot and cold, coldest in the middle of the period"""
    s = cfg["steep"]
    phase = math.cos(2 * math.pi * step / s["period"])
    swing = ((1 + phase) / 2) ** 0.5
    return s["cold"] + (s["hot"] - s["cold"]) * swing


@register("teacher")
def teacher(cfg):
    big = NoteModel(cfg["vocab"], **cfg["teacher"])
    # stands in for the real checkpoint: confident, with a wide range of logits
    with torch.no_grad():
        big.head.weight.mul_(24.0)
        big.core.weight_hh_l1.mul_(2.0)
    return big.eval().requires_grad_(False)


@register("loss")
def distil_loss(pupil_logits, teacher_logits, temp):
    log_q = pupil_logits.log_softmax(-1)
    p = (teacher_logits / temp).softmax(-1)
    kl = (p * (p.log() - log_q)).sum(-1)
    hard = kl.detach() / kl.detach().sum()  # words that the pupil gets wrong count for more
    return (hard * kl).sum()


def cups(cfg):
    """tasting notes: a walk over the wheel of flavours"""
    gen = torch.Generator().manual_seed(cfg["seed"])
    while True:
        start = torch.randint(0, cfg["vocab"], (cfg["batch"], 1), generator=gen)
        hops = torch.randint(-3, 4, (cfg["batch"], cfg["length"]), generator=gen)
        yield (start + hops.cumsum(1)) % cfg["vocab"]


def run(cfg):
    torch.manual_seed(cfg["seed"])
    big = REGISTRY["teacher"](cfg)
    pupil = NoteModel(cfg["vocab"], **cfg["pupil"])
    opt = torch.optim.Adam(pupil.parameters(), lr=cfg["lr"], betas=(0.9, 0.98))
    supply = cups(cfg)
    for step in range(1, cfg["steps"] + 1):
        ids = next(supply)
        temp = REGISTRY["temperature"](step, cfg)
        with torch.no_grad():
            target = big(ids)
        loss = REGISTRY["loss"](pupil(ids), target, temp)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(pupil.parameters(), 1.0)
        opt.step()
        print(f"cup {step:2d}  T {temp:.3f}  kl {loss.item():.6f}")
    return pupil


if __name__ == "__main__":
    pupil = run(CONFIG)
    print("leaf sum", sum(w.double().sum().item() for w in pupil.parameters()))
