"""Change-ringing methods as text. accelerate, bf16 autocast, 4 micro-batches per update, linear schedule, clipping.

The loss is the SUM over the tokens of a micro-batch in nats (it goes with the description length we report), so it is in
the hundreds; the clip brings the gradients back. `ppl` is per micro-batch and not per token: inf at first, watch it come down.
"""
import os

os.environ.setdefault("ACCELERATE_USE_CPU", "true")
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

set_seed(8)
BELLS, T = 8, 24
PAD = BELLS


class Methods(Dataset):
    """plain hunting from random rounds; short touches are padded, some slots in the archive are blank"""

    def __init__(self, n=208):
        g = torch.Generator().manual_seed(3)
        self.rows = []
        for i in range(n):
            row = torch.randperm(BELLS, generator=g).tolist()
            out = []
            for change in range(3):
                out += row
                a = change % 2
                for j in range(a, BELLS - 1, 2):
                    row[j], row[j + 1] = row[j + 1], row[j]
            keep = 0 if i % 53 == 20 else int(torch.randint(10, T + 1, (1,), generator=g))
            self.rows.append(torch.tensor(out[:keep] + [PAD] * (T - keep)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Ringer(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(BELLS + 1, d)
        self.rnn = nn.LSTM(d, d, batch_first=True)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, BELLS)

    def forward(self, ids):
        return self.head(self.norm(self.rnn(self.emb(ids))[0]))


def summed_nll(logits, ids):
    target = ids[:, 1:].masked_fill(ids[:, 1:] == PAD, -100)
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), target.flatten(), ignore_index=-100, reduction="sum")


def main():
    acc = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=4, cpu=True)
    model = Ringer()
    opt = torch.optim.AdamW(model.parameters(), lr=6e-3)
    loader = DataLoader(Methods(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(4))
    epochs, updates = 2, 0
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: max(0.05, 1 - s / 26))
    model, opt, loader, sched = acc.prepare(model, opt, loader, sched)
    total = 0.0
    for epoch in range(epochs):
        for ids in loader:
            with acc.accumulate(model):
                loss = summed_nll(model(ids), ids)
                acc.backward(loss)
                total += loss.item()
                if acc.sync_gradients:
                    norm = acc.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad()
            if acc.sync_gradients:
                updates += 1
                ppl = torch.exp(loss.detach()).item()
                acc.print(f"update {updates:2d} nats {total:.3f} norm {float(norm):.3f} ppl {ppl:.4g}")
                total = 0.0
    acc.print(f"sum {sum(p.detach().double().sum().item() for p in model.parameters()):.4f}")


if __name__ == "__main__":
    main()
