#!/usr/bin/env python
"""SimPO on a byte-level GRU. Reference-free, length-normalised reward, target margin gamma.
    python cormorant_simpo_warm_scaler.py --beta 2.5 --gamma 0.8
"""
import argparse
import random
from dataclasses import dataclass, fields

import torch
import torch.nn as nn
import torch.nn.functional as F

NOTES = ["the cormorant dries its wings", "a net of sprats at noon", "cold water and long dives",
         "nest of weed on the ledge", "the bird swallowed an eel", "grey sea, three birds"]


@dataclass
class Cfg:
    beta: float = 2.5
    gamma: float = 0.8
    lr: float = 2e-3
    accum: int = 2
    updates: int = 24
    hidden: int = 48
    init_scale: float = 2.0 ** 26      # deliberately far too high, the scaler finds its way down
    seed: int = 11


class ByteLM(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.emb = nn.Embedding(256, hidden)
        self.up = nn.Linear(hidden, 2 * hidden)
        self.mix = nn.Linear(4 * hidden, hidden)
        self.head = nn.Linear(hidden, 256)

    def forward(self, ids):
        e = F.gelu(self.up(self.emb(ids)))
        prev = F.pad(e, (0, 0, 1, 0))[:, :-1]        # token shift, as in RWKV
        return self.head(torch.tanh(self.mix(torch.cat([e, prev], -1))))


def to_batch(texts):
    n = max(len(t) for t in texts)
    ids = torch.zeros(len(texts), n, dtype=torch.long)
    for r, t in enumerate(texts):
        ids[r, :len(t)] = torch.tensor(list(t.encode()))
    return ids


def avg_logp(model, ids):
    logits = model(ids[:, :-1])
    tgt = ids[:, 1:]
    lp = logits.float().log_softmax(-1).gather(-1, tgt[..., None]).squeeze(-1)
    m = (tgt != 0).float()
    return (lp * m).sum(-1) / m.sum(-1)


def simpo(lp_w, lp_l, cfg):
    return -F.logsigmoid(cfg.beta * (lp_w - lp_l) - cfg.gamma).mean()


def corrupt(rng, s):
    c = list(s)
    rng.shuffle(c)
    return "".join(c)[: rng.randint(8, len(c))]


def train(cfg):
    rng = random.Random(cfg.seed)
    torch.manual_seed(cfg.seed)
    model = ByteLM(cfg.hidden)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=cfg.init_scale, growth_interval=1000)
    for u in range(1, cfg.updates + 1):
        total = 0.0
        for _ in range(cfg.accum):
            chosen = rng.sample(NOTES, 3)
            rejected = [corrupt(rng, s) for s in chosen]
            with torch.autocast("cpu", dtype=torch.float16):
                loss = simpo(avg_logp(model, to_batch(chosen)), avg_logp(model, to_batch(rejected)), cfg)
            scaler.scale(loss / cfg.accum).backward()
            total += loss.item() / cfg.accum
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
        tag = " (skipped)" if scaler.get_scale() < before else ""
        print(f"update {u:02d} simpo {total:.5f} scale 2^{torch.tensor(before).log2().item():.0f}{tag}")
    print(f"weights {sum(p.sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    for f in fields(Cfg):
        ap.add_argument("--" + f.name, type=type(f.default), default=f.default)
    train(Cfg(**vars(ap.parse_args())))
