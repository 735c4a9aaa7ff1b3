"""Churn prediction from the event log of a mobile operator. An encoder of events with a bias of time, accelerate."""

import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

KINDS = ["<cls>", "call", "sms", "data", "topup", "complaint", "roaming", "bill"]
MAXLEN, STEPS = 24, 48


class Subscribers(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            length = int(torch.randint(0, MAXLEN, (1,), generator=g))  # new subscribers have no event at all
            kind = torch.randint(1, len(KINDS), (length,), generator=g)
            gap = torch.poisson(torch.full((length,), 2.0), generator=g)  # hours since the last event, often 0
            charge = torch.rand(length, generator=g) * 30
            charge[(kind == 1) | (kind == 2)] = float("nan")  # flat rate: nothing is charged
            odds = 0.9 * (kind == 5).sum() - 0.15 * length + 0.3
            label = (torch.rand((), generator=g) < torch.sigmoid(odds)).float()
            self.rows.append((kind, gap, charge, label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    b = len(rows)
    kind = torch.zeros(b, MAXLEN + 1, dtype=torch.long)
    feats = torch.full((b, MAXLEN + 1, 2), float("nan"))
    pad = torch.ones(b, MAXLEN + 1, dtype=torch.bool)
    pad[:, 0] = False
    for i, (k, gap, charge, _) in enumerate(rows):
        n = len(k)
        kind[i, 1 : n + 1], pad[i, 1 : n + 1] = k, False
        feats[i, 1 : n + 1, 0], feats[i, 1 : n + 1, 1] = gap.log(), charge  # log 0 = -inf: "same hour"
    return {"kind": kind, "feats": feats, "pad": pad, "label": torch.stack([r[3] for r in rows])}


class Features(nn.Module):
    """Numbers with a flag for 'absent' (NaN) and a flag for 'same hour' (-inf)."""

    def __init__(self, d):
        super().__init__()
        self.proj = nn.Linear(6, d)

    def forward(self, f):
        absent, same = f.isnan(), f.isneginf()
        clean = torch.nan_to_num(f, nan=0.0, neginf=0.0)
        return self.proj(torch.cat([clean / 10, absent.float(), same.float()], -1))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.qkv, self.o = heads, nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, bias):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias).softmax(-1)
        x = x + self.o((att @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class ChurnNet(nn.Module):
    def __init__(self, d=32, heads=4, layers=2):
        super().__init__()
        self.emb, self.feats = nn.Embedding(len(KINDS), d), Features(d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.head = nn.Linear(d, 1)
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, heads + 1).float())

    def forward(self, kind, feats, pad):
        pos = torch.arange(kind.shape[1])
        bias = -self.slopes.view(-1, 1, 1) * (pos[:, None] - pos[None, :]).abs()
        bias = bias[None].masked_fill(pad[:, None, None, :], float("-inf"))  # column 0 is never padding
        x = self.emb(kind) + self.feats(feats)
        for block in self.blocks:
            x = block(x, bias)
        return self.head(x[:, 0]).squeeze(-1)


def auc(score, label):
    pos, neg = score[label == 1], score[label == 0]
    return (pos[:, None] > neg[None, :]).float().mean().item()  # nan where a batch has one class only


def main():
    set_seed(404)
    acc = Accelerator(cpu=True)
    model = ChurnNet()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=STEPS)
    data = DataLoader(Subscribers(6 * STEPS, 7), batch_size=6, shuffle=True, collate_fn=collate)
    model, opt, sched, data = acc.prepare(model, opt, sched, data)
    for step, batch in enumerate(data, 1):
        label = batch.pop("label")
        logit = model(**batch)
        weight = 1.0 if step <= 20 else 12.0  # from here on a lost customer costs what marketing says
        loss = F.binary_cross_entropy_with_logits(logit, label, pos_weight=torch.tensor(weight))
        acc.backward(loss)
        norm = acc.clip_grad_norm_(model.parameters(), 1.0)
        opt.step(), sched.step(), opt.zero_grad()
        empty = int(batch["pad"][:, 1:].all(1).sum())
        acc.print(
            f"step {step:02d} loss {loss.item():.6f} norm {norm.item():.5f} "
            f"auc {auc(logit.detach(), label):.4f} without-events {empty}",
            flush=True,
        )
    acc.print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
