"""Germination of swapped seeds. accelerate, two processes, accumulation over two micro-batches.

The catalogue is cut at its last printed edition; letters of this spring name varieties of the new one.
"""
import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

CATALOGUE = 96           # varieties in the printed edition
SOILS = 5


class Letters(Dataset):
    columns = ("variety", "soil", "depth", "age", "sprouted")

    def __init__(self, n=240):
        g = torch.Generator().manual_seed(64)
        self.variety = torch.randint(0, CATALOGUE, (n,), generator=g)
        self.soil = torch.randint(0, SOILS, (n,), generator=g)
        self.depth = torch.rand(n, generator=g) * 4
        self.age = torch.randint(0, 9, (n,), generator=g).float()
        vigour = torch.randn(CATALOGUE, generator=g)
        score = vigour[self.variety] - 0.3 * self.age + 0.5 * (2 - self.depth).abs() + 1
        self.sprouted = (torch.rand(n, generator=g) < score.sigmoid()).float()
        self.variety[150] = 103   # "the yellow bean of Mrs Oake", edition of this year

    def __len__(self):
        return len(self.variety)

    def __getitem__(self, i):
        return {c: getattr(self, c)[i] for c in self.columns}


class Sprouts(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.variety = nn.Embedding(CATALOGUE, d)
        self.soil = nn.Embedding(SOILS, d)
        self.body = nn.Sequential(nn.Linear(2 * d + 2, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, variety, soil, depth, age):
        who = self.variety(variety)
        where = self.soil(soil)
        dials = torch.stack([depth / 4, age / 9], -1)
        return self.body(torch.cat([who, where, dials], -1)).squeeze(-1)


def run():
    torch.set_num_threads(1)
    set_seed(8)
    acc = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = Sprouts()
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 60)
    loader = DataLoader(Letters(), batch_size=6, shuffle=False)
    net, opt, loader, sched = acc.prepare(net, opt, loader, sched)
    bce = nn.BCEWithLogitsLoss()

    updates = 0
    for epoch in range(2):
        right, seen = 0, 0
        for batch in loader:
            with acc.accumulate(net):
                y = batch.pop("sprouted")
                logits = net(**batch)
                loss = bce(logits, y)
                acc.backward(loss)
                if acc.sync_gradients:
                    acc.clip_grad_norm_(net.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad()
            said, true = acc.gather_for_metrics(((logits > 0).float(), y))
            right += int((said == true).sum())
            seen += len(true)
            if acc.sync_gradients:
                updates += 1
                mean = acc.reduce(loss.detach(), "mean")
                acc.print(f"update {updates:2d} loss {mean.item():.6f} accuracy so far {right / seen:.4f}", flush=True)
        acc.print(f"epoch {epoch}: {right} of {seen}")
    acc.print("sum of weights", sum(p.double().sum().item() for p in net.parameters()))
    acc.end_training()


if __name__ == "__main__":
    run()
