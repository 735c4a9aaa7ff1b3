import math
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import set_seed

STREETS = ["harbour", "ring road", "park", "market"]


def make_year(hours=32 * 36):
    g = torch.Generator().manual_seed(19)
    t = torch.arange(hours)
    wind = 3 + torch.sin(t / 31.0) + 0.5 * torch.randn(hours, generator=g)
    traffic = 1 + torch.sin(t * 2 * math.pi / 24 - 1).clamp(min=0)
    temp = 10 + 8 * torch.sin(t * 2 * math.pi / 24 - 2)
    x = torch.stack([wind - 3, traffic - 1.3, (temp - 10) / 8], 1)
    load = torch.tensor([0.7, 1.6, 0.3, 1.1])
    pm = load * traffic[:, None] * 12 / (1 + wind[:, None].clamp(min=0.2))
    pm = pm + 0.3 * torch.randn(hours, 4, generator=g)
    # market: inlet in the workshop for a morning
    pm[690:701, 3] = float("nan")
    return x, pm


class Streets(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 20), nn.SiLU(), nn.Linear(20, 20), nn.SiLU())
        self.heads = nn.ModuleList([nn.Linear(20, 1) for _ in STREETS])

    def forward(self, x):
        h = self.trunk(x)
        return torch.cat([head(h) for head in self.heads], 1)


def main():
    set_seed(4)
    acc = Accelerator(cpu=True)
    loader = DataLoader(TensorDataset(*make_year()), batch_size=32, shuffle=False)
    model = Streets()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 36)
    model, opt, loader, sched = acc.prepare(model, opt, loader, sched)
    for step, (x, y) in enumerate(loader, 1):
        pred = model(x)
        err = (pred - y) ** 2
        loss = torch.nanmean(err)          # hours without a reading do not count
        acc.backward(loss)
        acc.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        acc.print(f"{step:>3} mse {loss.item():.4f}")
    w = sum(p.detach().double().abs().sum().item() for p in model.parameters())
    acc.print("weights in absolute terms", w)


main()
