"""Tensile strength of laser welds with an interval around it.
Two quantile heads are trained with the pinball loss; a rolling window of the last inspected
seams widens them to the wanted coverage (split conformal prediction, finite sample rank)."""
import math
from collections import deque

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MISCOVERAGE = 0.02


class WeldLine(Dataset):
    def __init__(self, n=640, seed=31):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 5, generator=g)
        spread = 0.2 + 0.3 * torch.sigmoid(2 * self.x[:, 1])
        self.y = 3 + torch.sin(self.x[:, 0]) + 0.4 * self.x[:, 2] + spread * torch.randn(n, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Calibrator:
    """Margin that the interval lacks; without enough seams nothing short of everything is covered."""

    def __init__(self, window=200):
        self.scores = deque(maxlen=window)

    def margin(self):
        n = len(self.scores)
        rank = math.ceil((n + 1) * (1 - MISCOVERAGE))
        if rank > n:
            return torch.tensor(float("inf"))
        return torch.tensor(sorted(self.scores)[rank - 1])

    def add(self, low, high, y):
        self.scores.extend(torch.maximum(low - y, y - high).tolist())


class QuantileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 32), nn.ELU(), nn.Linear(32, 32), nn.ELU())
        self.low, self.gap = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, x):
        h = self.trunk(x)
        low = self.low(h).squeeze(-1)
        return low, low + nn.functional.softplus(self.gap(h)).squeeze(-1)


def pinball(pred, y, q, weight):
    d = y - pred
    return (weight * torch.maximum(q * d, (q - 1) * d)).mean()


def train():
    torch.manual_seed(6)
    net = QuantileNet().to(device)
    slow = [p for n, p in net.named_parameters() if n.startswith("trunk")]
    fast = [p for n, p in net.named_parameters() if not n.startswith("trunk")]
    opt = torch.optim.AdamW([{"params": slow, "lr": 4e-3}, {"params": fast, "lr": 2e-2}], weight_decay=1e-4)
    calibrator = Calibrator()
    loader = DataLoader(WeldLine(), batch_size=20, pin_memory=device.type == "cuda")
    for number, (x, y) in enumerate(loader, start=1):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        margin = calibrator.margin().to(device)
        low, high = net(x)
        with torch.no_grad():
            upper, lower = high + margin, low - margin
            covered = ((y <= upper) & (y >= lower)).float().mean()
            # seams near or over the edge of the published interval count more
            slack = torch.minimum(upper - y, y - lower)
            weight = 1 + torch.exp(-slack.clamp(min=0))
        loss = pinball(low, y, 0.1, weight) + pinball(high, y, 0.9, weight)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        calibrator.add(low.detach(), high.detach(), y)
        print(f"lot {number:2d} pinball {loss.item():.4f} margin {margin.item():.3f} "
              f"width {(upper - lower).mean().item():.3f} covered {covered.item():.2f}")
    print(f"norm of all weights {sum(p.detach().square().sum().item() for p in net.parameters()) ** 0.5:.5f}")


train()
