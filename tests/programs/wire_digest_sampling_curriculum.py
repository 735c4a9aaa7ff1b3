#!/usr/bin/env python
"""News wire summariser: GRU encoder/decoder, attention, scheduled sampling (inverse sigmoid decay).

The loss is summed over tokens, as in the desk's old Torch7 code, so it is in the hundreds.
"""
import argparse
import math
import random
from collections import UserDict

import torch
from torch import nn
import torch.nn.functional as F

PAD, BOS, EOS, UNK = range(4)


class WireBatch(UserDict):
    def to(self, device):
        return WireBatch({k: v.to(device) for k, v in self.items()})

    src = property(lambda self: self["src"])
    tgt = property(lambda self: self["tgt"])


class Summariser(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.enc = nn.GRU(dim, dim, batch_first=True)
        self.dec = nn.GRUCell(2 * dim, dim)
        self.out = nn.Linear(2 * dim, vocab)
        never = torch.zeros(vocab)
        never[[PAD, BOS]] = -math.inf      # these may not be written by the decoder
        self.register_buffer("never", never)

    def encode(self, src):
        mem, h = self.enc(self.emb(src))
        return mem, h[0], src == PAD

    def step(self, word, h, mem, pad):
        att = torch.einsum("bd,btd->bt", h, mem).masked_fill(pad, -math.inf)
        ctx = torch.einsum("bt,btd->bd", att.softmax(-1), mem)
        h = self.dec(torch.cat([self.emb(word), ctx], -1), h)
        return self.out(torch.cat([h, ctx], -1)) + self.never, h


def make_batch(rng, vocab, size=6):
    src = torch.zeros(size, 14, dtype=torch.long)
    tgt = torch.zeros(size, 6, dtype=torch.long)
    for i in range(size):
        n = rng.randint(5, 14)
        story = [rng.randrange(4, vocab) for _ in range(n)]
        lead = sorted(story, reverse=True)[: rng.randint(2, 5)]
        src[i, :n] = torch.tensor(story)
        tgt[i, : len(lead) + 1] = torch.tensor(lead + [EOS])
    return WireBatch(src=src, tgt=tgt)


def teacher_prob(step, k):
    return 1.0 if step <= 5 else k / (k + math.exp((step - 5) / k))


def main(args):
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    model = Summariser(args.vocab)
    opt = torch.optim.RMSprop(model.parameters(), lr=args.lr)
    for step in range(1, args.steps + 1):
        batch = make_batch(rng, args.vocab).to("cpu")
        p = teacher_prob(step, args.k)
        mem, h, pad = model.encode(batch.src)
        word = torch.full((len(batch.src),), BOS)
        loss, own, own_hits = torch.zeros(()), 0, 0
        for t in range(batch.tgt.shape[1]):
            logits, h = model.step(word, h, mem, pad)
            gold = batch.tgt[:, t]
            loss = loss + F.cross_entropy(logits, gold, ignore_index=PAD, reduction="sum") \
                if (gold != PAD).any() else loss
            if rng.random() < p:
                word = gold
            else:
                word = torch.distributions.Categorical(logits=logits.detach(), validate_args=False).sample()
                own += int((gold != PAD).sum())
                own_hits += int((word == gold).sum())
        # share of own words that were right; nothing sampled yet means nan, the plotter leaves it out
        share = (torch.tensor(float(own_hits)) / torch.tensor(float(own))).item()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        print(f"step={step} teacher={p:.3f} nll_sum={loss.item():.4f} own_right={share:.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--vocab", type=int, default=40)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--k", type=float, default=6.0)
    ap.add_argument("--seed", type=int, default=17)
    main(ap.parse_args())
