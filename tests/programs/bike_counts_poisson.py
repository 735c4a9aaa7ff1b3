"""Counts of rented bicycles per hour: Poisson regression with a log link, run by accelerate."""
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
set_seed(31)


def hours(n=360):
    g = torch.Generator().manual_seed(5)
    temperature = torch.randn(n, generator=g)
    rain = (torch.rand(n, generator=g) < 0.2).float()
    wind = torch.rand(n, generator=g) * 2
    # on one evening the station reported the wind in metres per hour
    wind[250] = 5400.0
    rate = torch.exp(1.2 + 0.4 * temperature - 0.8 * rain - 0.1 * wind.clamp(max=2))
    return torch.stack([temperature, rain, wind], dim=1), torch.poisson(rate, generator=g)


class LogRate(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.bend = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        nn.init.constant_(self.linear.weight, 0.1)

    def forward(self, x):
        return (self.linear(x) + self.bend(x)).squeeze(-1)


def main():
    accelerator = Accelerator(cpu=True)
    features, counts = hours()
    model = LogRate()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(features, counts), batch_size=20, shuffle=False)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    criterion = nn.PoissonNLLLoss(log_input=True)
    step = 0
    for epoch in range(2):
        for x, y in loader:
            step += 1
            log_rate = model(x)
            loss = criterion(log_rate, y)
            accelerator.backward(loss)
            accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            optimizer.step()
            optimizer.zero_grad()
    weights = accelerator.unwrap_model(model).state_dict().values()
    accelerator.print("finite", int(all(bool(torch.isfinite(w).all()) for w in weights)))


if __name__ == "__main__":
    main()
