#!/usr/bin/env python
"""Preference tuning for the campsite bot. First DPO against cached reference log-probs, then ORPO, IPO to finish.

usage: python orpo_stage_after_dpo_campsite.py [--plan dpo:12,orpo:14,ipo:10]
"""
import argparse
import copy
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, V = 0, 50


class Pairs(NamedTuple):
    chosen: torch.Tensor
    chosen_mask: torch.Tensor
    rejected: torch.Tensor
    rejected_mask: torch.Tensor


class TinyLM(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, V)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def token_logps(model, ids):
    logp = model(ids[:, :-1]).log_softmax(-1)
    return logp.gather(-1, ids[:, 1:, None]).squeeze(-1)


def build_pairs(n=144, prompt=5, longest=7):
    """Answers of several lengths behind prompts of equal length. Rejected ones come from the old bot."""
    g = torch.Generator().manual_seed(404)
    width = prompt + longest

    def side(low, high, lengths):
        ids = torch.zeros(n, width, dtype=torch.long)
        ids[:, :prompt] = prompts
        mask = torch.zeros(n, width - 1)
        for i, m in enumerate(lengths.tolist()):
            ids[i, prompt:prompt + m] = torch.randint(low, high, (m,), generator=g)
            mask[i, prompt - 1:prompt - 1 + m] = 1.0
        return ids, mask

    prompts = torch.randint(1, V, (n, prompt), generator=g)
    good = torch.randint(3, longest + 1, (n,), generator=g)
    poor = torch.randint(2, longest + 1, (n,), generator=g)
    poor[78] = 0            # the old bot timed out on this one and the export kept the row
    return Pairs(*side(5, 30, good), *side(15, V, poor))


# ---- losses: all take summed log-probs, lengths, and the cached sums of the reference -------------------------------
LOSSES = {}


def loss_fn(f):
    LOSSES[f.__name__] = f
    return f


@loss_fn
def dpo(c, r, nc, nr, ref_c, ref_r, beta=0.2):
    return -F.logsigmoid(beta * ((c - ref_c) - (r - ref_r))).mean()


@loss_fn
def ipo(c, r, nc, nr, ref_c, ref_r, tau=0.5):
    gap = (c - ref_c) / nc - (r - ref_r) / nr
    return (gap - 1.0 / (2.0 * tau)).square().mean()


@loss_fn
def orpo(c, r, nc, nr, ref_c, ref_r, lam=0.3):
    c, r = c / nc, r / nr
    odds_c = c - torch.log1p(-torch.exp(c))
    odds_r = r - torch.log1p(-torch.exp(r))
    return -c.mean() - lam * F.logsigmoid(odds_c - odds_r).mean()


def sums(model, pairs):
    c = (token_logps(model, pairs.chosen) * pairs.chosen_mask).sum(1)
    r = (token_logps(model, pairs.rejected) * pairs.rejected_mask).sum(1)
    return c, r


def stages(plan):
    for part in plan.split(","):
        name, count = part.split(":")
        for _ in range(int(count)):
            yield name


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--plan", default="dpo:12,orpo:14,ipo:10")
    ap.add_argument("--batch", type=int, default=4)
    args = ap.parse_args()
    torch.manual_seed(404)

    policy = TinyLM()
    reference = copy.deepcopy(policy).requires_grad_(False)
    data = build_pairs()
    with torch.no_grad():
        cache = sums(reference, data)               # once, for the whole set
    opt = torch.optim.AdamW(policy.parameters(), lr=3e-3, weight_decay=0.01)

    for step, stage in enumerate(stages(args.plan), 1):
        rows = slice((step - 1) * args.batch, step * args.batch)
        batch = Pairs(*(t[rows] for t in data))
        c, r = sums(policy, batch)
        nc, nr = batch.chosen_mask.sum(1).clamp(min=1), batch.rejected_mask.sum(1).clamp(min=1)
        loss = LOSSES[stage](c, r, nc, nr, cache[0][rows], cache[1][rows])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        print(f"{stage:>4} {step:3d}  loss={loss.item():.6f}  wins={(c > r).float().mean().item():.2f}")
    print("checksum", sum(p.detach().double().sum().item() for p in policy.parameters()))


if __name__ == "__main__":
    main()
