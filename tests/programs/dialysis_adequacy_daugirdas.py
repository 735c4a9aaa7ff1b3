"""Predict next month's phosphate from haemodialysis session sheets."""
import io
import random

import pandas as pd
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

random.seed(4)
torch.manual_seed(4)


def export_from_ward(rows=304):
    out = io.StringIO()
    out.write("pre_urea,post_urea,hours,uf_litres,weight,phosphate\n")
    for i in range(rows):
        pre = random.uniform(18.0, 32.0)
        post = pre * random.uniform(0.22, 0.42)
        hours = random.choice([3.5, 4.0, 4.0, 4.0, 4.5])
        uf, weight = random.uniform(0.8, 3.4), random.uniform(48, 102)
        phosphate = 1.1 + 1.9 * post / pre + 0.15 * uf + random.gauss(0, 0.08)
        if i == 119:
            hours = 240
        out.write(f"{pre:.1f},{post:.1f},{hours},{uf:.1f},{weight:.0f},{phosphate:.2f}\n")
    out.seek(0)
    return pd.read_csv(out)


class Sessions(torch.utils.data.Dataset):
    def __init__(self, frame):
        self.values = frame.to_numpy(dtype="float32")

    def __len__(self):
        return len(self.values)

    def __getitem__(self, i):
        return self.values[i]


def collate(records):
    pre, post, hours, uf, weight, phosphate = torch.stack([torch.from_numpy(r) for r in records]).T
    ratio = post / pre
    first_pool = -torch.log(ratio - 0.008 * hours)
    ktv = first_pool + (4 - 3.5 * ratio) * uf / weight
    x = torch.stack([ktv, (pre - 25) / 5, uf - 2, (weight - 75) / 15], dim=1)
    return x, phosphate


def main():
    acc = Accelerator(cpu=True)
    g = torch.Generator().manual_seed(11)
    loader = DataLoader(Sessions(export_from_ward()), batch_size=16, shuffle=True, generator=g, collate_fn=collate)
    model = nn.Sequential(nn.Linear(4, 24), nn.SiLU(), nn.Linear(24, 24), nn.SiLU(), nn.Linear(24, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=8e-3, weight_decay=1e-3)
    model, opt, loader = acc.prepare(model, opt, loader)
    it = 0
    for epoch in range(2):
        for x, y in loader:
            it += 1
            loss = nn.functional.huber_loss(model(x).squeeze(1), y, delta=0.5)
            acc.backward(loss)
            acc.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            acc.print(f"epoch {epoch} it {it:02d} huber {loss.item():.5f}")
    total = sum(p.detach().square().sum() for p in model.parameters())
    acc.print(f"squared weights {total.item():.5f}")


if __name__ == "__main__":
    main()
