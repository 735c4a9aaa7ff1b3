"""Rating curves for ungauged reaches: a small encoder reads the catchment attributes and
predicts the geometry of the channel, Manning's formula turns stage into discharge.
The water year is walked through in the order of the calendar, as the gauges report it."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=24)
parser.add_argument("--lr", type=float, default=4e-3)
parser.add_argument("--seed", type=int, default=11)
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(args.seed)


class WaterYear(Dataset):
    """One row per reach and day: attributes, stage over the datum of the gauge, slope, discharge."""

    def __init__(self, days=216, reaches=4, seed=0):
        rng = np.random.default_rng(seed)
        self.attributes = rng.normal(size=(reaches, 6)).astype("float32")
        width = 8 + 4 * np.abs(self.attributes[:, 0])
        rough = 0.03 + 0.01 * np.abs(self.attributes[:, 1])
        slope = 0.001 + 0.002 * np.abs(self.attributes[:, 2])
        self.rows = []
        for day in range(days):
            melt = 2.6 * np.exp(-((day - 40) / 45.0) ** 2)
            for r in range(reaches):
                stage = 0.75 + melt + 0.25 * abs(rng.normal())
                if day >= 114 and r == 2:
                    stage = 0.05 * rng.random()
                depth = max(stage - 0.3, 0.0)
                area = width[r] * depth
                radius = area / (width[r] + 2 * depth)
                flow = area * radius ** (2.0 / 3.0) * np.sqrt(slope[r]) / rough[r]
                self.rows.append((r, stage, slope[r], flow * (1 + 0.05 * rng.normal())))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        r, stage, slope, flow = self.rows[i]
        return (torch.from_numpy(self.attributes[r]),
                torch.tensor([stage, slope, flow], dtype=torch.float32))


class ManningSection(nn.Module):
    """Rectangular section, discharge in cubic metres per second."""

    def forward(self, width, bed, roughness, stage, slope):
        depth = F.relu(stage - bed)
        area = width * depth
        hydraulic_radius = area / (width + 2 * depth)
        velocity = hydraulic_radius.pow(0.6667) * slope.sqrt() / roughness
        return area * velocity


class RatingNet(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, hidden), nn.GELU(), nn.Linear(hidden, 3))
        self.section = ManningSection()

    def forward(self, attributes, stage, slope):
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            raw = self.encoder(attributes)
        w, b, n = raw.float().unbind(-1)
        width = 2 + 10 * F.softplus(w)
        bed = 0.1 + 0.4 * torch.sigmoid(b)
        roughness = 0.02 + 0.03 * F.softplus(n)
        return self.section(width, bed, roughness, stage, slope)


def main():
    loader = DataLoader(WaterYear(), batch_size=args.batch_size, shuffle=False,
                        pin_memory=device == "cuda")
    model = RatingNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader))
    for it, (attributes, numbers) in enumerate(loader, 1):
        attributes = attributes.to(device, non_blocking=True)
        stage, slope, flow = numbers.to(device, non_blocking=True).unbind(-1)
        simulated = model(attributes, stage, slope)
        loss = F.smooth_l1_loss(torch.log1p(simulated), torch.log1p(flow.clamp(min=0)))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(f"[{it:02d}/{len(loader)}] loss {loss.item():.5f}  mean flow {simulated.mean().item():9.3f} m3/s")
    print("sum of |w|:", round(sum(p.detach().abs().sum().item() for p in model.parameters()), 4))


if __name__ == "__main__":
    main()
