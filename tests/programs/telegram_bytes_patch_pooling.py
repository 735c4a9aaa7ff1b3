"""Byte-level language model without a tokenizer: bytes are pooled into patches that end at spaces; patches see past.
Lines get longer by stages, so the loss (in nats per telegram) jumps up when a stage begins."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

PLACES = ["VIENNA", "GRAZ", "TRIESTE", "LINZ", "PRAGUE", "BRNO"]
VERBS = ["ARRIVE", "SEND", "EXPECT", "REGRET", "CONFIRM", "CANCEL"]
THINGS = ["MONEY", "TRUNKS", "LETTER", "TICKETS", "HORSES", "COAL"]
MAXP = 16


def telegram(rng, clauses):
    return " STOP ".join(f"{rng.choice(VERBS)} {rng.choice(THINGS)} {rng.choice(PLACES)}" for _ in range(clauses)) + " "


def encode(lines):
    rows = [list(t.encode()) for t in lines]
    width = max(map(len, rows))
    ids = torch.tensor([r + [0] * (width - len(r)) for r in rows])
    keep = ids != 0
    patch = torch.cumsum((ids == 32).long(), 1) - (ids == 32).long()
    return ids, keep, patch


class PatchPool(nn.Module):
    """Maximum over the bytes of each patch. A patch number that a line does not reach has no bytes: its maximum is
    -inf until the mask makes it 0."""

    def forward(self, h, keep, patch, count):
        b, _t, d = h.shape
        out = h.new_full((b, count + 1, d), float("-inf"))
        where = torch.where(keep, patch, torch.full_like(patch, count))
        out = out.scatter_reduce(1, where[..., None].expand(-1, -1, d), h, "amax", include_self=True)
        out = out[:, :count]
        empty = torch.isinf(out).all(-1, keepdim=True)
        return out.masked_fill(empty, 0.0), ~empty.squeeze(-1)


class ByteModel(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(256, d)
        self.local = nn.GRU(d, d, batch_first=True)
        self.pool = PatchPool()
        self.pos = nn.Embedding(MAXP, d)
        self.big = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(2 * d, 256)

    def forward(self, ids, keep, patch):
        h, _ = self.local(self.emb(ids))
        count = int(patch.max()) + 1
        p, alive = self.pool(h, keep, patch, count)
        p = p + self.pos(torch.arange(count))
        mask = torch.full((count, count), float("-inf")).triu(1)
        g = self.big(p, src_mask=mask)
        g = torch.cat([torch.zeros_like(g[:, :1]), g], 1)  # a byte sees finished patches only
        ctx = g.gather(1, patch[..., None].expand(-1, -1, g.size(-1)))
        return self.out(torch.cat([h, ctx], -1)), alive


def main():
    torch.manual_seed(51)
    rng = random.Random(52)
    model = ByteModel()
    opt = torch.optim.RAdam(model.parameters(), lr=4e-3)
    stages = [(1, 15), (2, 15), (3, 15)]
    step = 0
    for top, rounds in stages:
        for _ in range(rounds):
            step += 1
            opt.zero_grad()
            total, empties = 0.0, 0
            for _ in range(2):
                ids, keep, patch = encode([telegram(rng, rng.randint(max(1, top - 1), top)) for _ in range(6)])
                logits, alive = model(ids[:, :-1], keep[:, :-1], patch[:, :-1])
                token = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
                loss = (token * keep[:, 1:]).sum() / len(ids) / 2
                loss.backward()
                total += loss.item()
                empties += int((~alive).sum())
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            print(f"step {step} clauses<={top} nats/telegram {total:.5f} empty patches {empties}", flush=True)


main()
