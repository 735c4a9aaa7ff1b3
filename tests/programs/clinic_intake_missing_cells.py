"""Feature-tokenizer transformer for a clinic's intake form. A third of the cells is empty (NaN in the CSV).

Missing cells get a learned token; in late steps whole columns are missing, as in the forms of the new branch.
"""
import csv
import io
import math

import torch
import torch.nn.functional as F
from torch import nn

COLS = ["age", "weight", "height", "systolic", "diastolic", "pulse", "glucose", "income_cents"]


def write_form(n, gen):
    """income_cents is what it says: 1e6 and more, nobody has ever scaled it."""
    buf = io.StringIO()
    out = csv.writer(buf)
    out.writerow(COLS + ["readmitted"])
    z = torch.randn(n, 8, generator=gen)
    y = (z[:, 0] + z[:, 3] - z[:, 6] > 0).long()
    scale = torch.tensor([18.0, 15, 10, 20, 12, 9, 30, 2.5e6])
    centre = torch.tensor([50.0, 75, 170, 125, 80, 70, 100, 3.1e6])
    cells = z * scale + centre
    hole = torch.rand(n, 8, generator=gen) < 0.33
    hole[n // 2:, 6] = True                      # the new branch has no lab
    for row, h, lab in zip(cells.tolist(), hole.tolist(), y.tolist()):
        out.writerow(["" if m else f"{v:.3f}" for v, m in zip(row, h)] + [lab])
    buf.seek(0)
    return buf


def read_form(buf):
    rows = list(csv.DictReader(buf))
    x = torch.tensor([[float(r[c]) if r[c] else math.nan for c in COLS] for r in rows])
    return x, torch.tensor([int(r["readmitted"]) for r in rows])


class CellTokens(nn.Module):
    def __init__(self, n, d, mean, std):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.w = nn.Parameter(torch.randn(n, d) * 0.2)
        self.b = nn.Parameter(torch.zeros(n, d))
        self.absent = nn.Parameter(torch.randn(n, d) * 0.2)

    def forward(self, x):
        hole = x.isnan()
        z = torch.where(hole, torch.zeros_like(x), (x - self.mean) / self.std)    # before any weight sees it
        return torch.where(hole[..., None], self.absent, z[..., None] * self.w + self.b), hole


class FormNet(nn.Module):
    def __init__(self, mean, std, d=24, heads=3):
        super().__init__()
        self.cells = CellTokens(len(COLS), d, mean, std)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.heads = heads
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 48), nn.GELU(), nn.Linear(48, d))
        self.out = nn.Linear(d, 2)

    def forward(self, x, drop_holes):
        t, hole = self.cells(x)
        t = torch.cat([self.cls.expand(len(t), -1, -1), t], 1)
        b, n, d = t.shape
        bias = torch.zeros(b, 1, 1, n)
        if drop_holes:                               # [CLS] is always there, so no row is empty
            bias[:, 0, 0, 1:].masked_fill_(hole, -math.inf)
        q, k, v = (p.view(b, n, self.heads, -1).transpose(1, 2) for p in self.qkv(t).chunk(3, -1))
        att = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias).softmax(-1)
        t = t + self.proj((att @ v).transpose(1, 2).reshape(b, n, d))
        return self.out((t + self.ff(t))[:, 0])


def main():
    torch.manual_seed(88)
    gen = torch.Generator().manual_seed(88)
    x, y = read_form(write_form(1600, gen))
    mean = x.nanmean(0)
    std = ((x - mean) ** 2).nanmean(0).sqrt()
    net = FormNet(mean, std)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for step in range(50):
        rows = slice(step * 32, step * 32 + 32)
        logits = net(x[rows], drop_holes=step % 2 == 1)   # alternately: learn the token, and learn to do without
        loss = F.cross_entropy(logits, y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen = x[rows].nanmean(0)                         # nan for a column that is empty here
        print(f"step {step:2d} loss {loss.item():.6f} glucose {seen[6].item():.2f} income {seen[7].item():.0f}")
    print("weights", f"{sum(p.detach().sum().item() for p in net.parameters()):.5f}")


main()
