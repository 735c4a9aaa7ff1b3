"""Writes the next rows of a sock from the rows above (k, p, yo, k2tog, ssk ...), with Accelerate.

Three micro-batches make one update. Foundation charts have no rows to write; their targets are all -100.
The sum of the token losses is divided by the number of target tokens of the whole window.
"""
import itertools
import random

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

STITCHES = ["<pad>", "<cast>", "<end>", "k", "p", "yo", "k2tog", "ssk", "sl"]
WINDOW = 3


class SockRows(Dataset):
    def __init__(self, n):
        r = random.Random(55)
        self.items = []
        for i in range(n):
            motif = [r.randint(3, 8) for _ in range(r.randint(2, 4))]
            above = motif * r.randint(1, 3)
            below = [] if 48 <= i < 60 or i % 13 == 0 else motif[1:] + motif[:1] + [2]
            self.items.append((above, below))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(rows):
    src = max(len(a) for a, _ in rows)
    tgt = max(max(len(b) for _, b in rows), 1)
    return {
        "src": torch.tensor([a + [0] * (src - len(a)) for a, _ in rows]),
        "dec": torch.tensor([([1] + b)[:tgt] + [0] * (tgt - len(([1] + b)[:tgt])) for _, b in rows]),
        "labels": torch.tensor([b + [-100] * (tgt - len(b)) for _, b in rows]),
    }


class Knitter(nn.Module):
    def __init__(self, d=20):
        super().__init__()
        self.emb = nn.Embedding(len(STITCHES), d)
        self.enc = nn.GRU(d, d, batch_first=True)
        self.dec = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(2 * d, len(STITCHES))

    def forward(self, src, dec):
        mem, last = self.enc(self.emb(src))
        hid, _ = self.dec(self.emb(dec), last)
        score = hid @ mem.transpose(1, 2) / hid.shape[-1] ** 0.5
        score = score.masked_fill((src == 0)[:, None, :], float("-inf"))
        return self.out(torch.cat([hid, score.softmax(-1) @ mem], -1))


def main():
    set_seed(4)
    plugin = GradientAccumulationPlugin(num_steps=WINDOW, sync_with_dataloader=False)
    acc = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    model = Knitter()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-2, total_steps=40)
    loader = DataLoader(SockRows(360), batch_size=4, shuffle=False, collate_fn=collate)
    model, opt, loader, sched = acc.prepare(model, opt, loader, sched)

    batches, update = iter(loader), 0
    while True:
        window = list(itertools.islice(batches, WINDOW))
        if not window:
            break
        tokens = max(sum(int((b["labels"] != -100).sum()) for b in window), 1)
        total, parts = 0.0, []
        for b in window:
            with acc.accumulate(model):
                logits = model(b["src"], b["dec"])
                nll = F.cross_entropy(logits.flatten(0, 1), b["labels"].flatten(), ignore_index=-100, reduction="sum")
                acc.backward(nll * WINDOW / tokens)
                if acc.sync_gradients:
                    acc.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad()
            parts.append(round(nll.item(), 3))
            total += nll.item() / tokens
        update += 1
        acc.print(f"update {update:2d}  loss per stitch {total:.4f}  micro-batches {parts}")
    acc.print("sum of squared weights", sum(p.detach().square().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
