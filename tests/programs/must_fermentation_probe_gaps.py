"""Final alcohol of a vat from the first days of its density curve."""
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from accelerate import Accelerator
from accelerate.utils import set_seed

HOURS = np.arange(0, 72, 6)


def cellar_log(n_vats, seed):
    """One row per visit of the cellar hand: vat, hour, density (g/l), temperature."""
    rng = np.random.default_rng(seed)
    rows, alcohol = [], {}
    for vat in range(n_vats):
        og = rng.uniform(1075, 1105)
        k = rng.uniform(0.01, 0.035)
        visits = np.unique(np.r_[0, rng.choice(np.arange(1, 72), 14, replace=False)])
        if vat == 37:
            visits = visits[visits > 9]                     # pressed in the evening, first visit next day
        dens = 995 + (og - 995) * np.exp(-k * visits) + rng.normal(0, 0.4, len(visits))
        temp = 17 + 8 * k / 0.035 + rng.normal(0, 0.5, len(visits))
        rows += [dict(vat=vat, hour=h, density=d, temp=c) for h, d, c in zip(visits, dens, temp)]
        alcohol[vat] = (og - 995) * 0.131
    return pd.DataFrame(rows), pd.Series(alcohol, name="abv")


class Vats(Dataset):
    def __init__(self, log, abv):
        self.by_vat = {v: g.set_index("hour")[["density", "temp"]] for v, g in log.groupby("vat")}
        self.abv = abv

    def __len__(self):
        return len(self.abv)

    def __getitem__(self, i):
        return self.by_vat[i], float(self.abv.loc[i])


def to_grid(items):
    curves = []
    for frame, _ in items:
        grid = frame.reindex(np.arange(72)).interpolate(method="index").loc[HOURS]
        curves.append((grid - [1040.0, 20.0]) / [30.0, 4.0])
    x = torch.tensor(np.stack([c.to_numpy() for c in curves]), dtype=torch.float32)
    y = torch.tensor([a for _, a in items], dtype=torch.float32)
    return x, y


class AlcoholNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.reader = nn.GRU(2, 16, batch_first=True)
        self.out = nn.Linear(16, 1)

    def forward(self, curve):
        states, _ = self.reader(curve)
        return 13.0 + self.out(states[:, -1]).squeeze(-1)


def main():
    set_seed(410)
    accelerator = Accelerator(cpu=True)
    log, abv = cellar_log(80, seed=15)
    loader = DataLoader(Vats(log, abv), batch_size=8, shuffle=True, collate_fn=to_grid)
    model = AlcoholNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = 0
    for epoch in range(3):
        for curve, target in loader:
            loss = nn.functional.mse_loss(model(curve), target)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            accelerator.print(f"epoch {epoch} step {step} mse {loss.item():.4f}")
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    accelerator.print(f"sum of squared weights: {weights.pow(2).sum().item():.5f}")


if __name__ == "__main__":
    main()
