"""Rides per courier shift: negative binomial regression with the length of the shift as exposure (Lightning)."""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Shifts(Dataset):
    """Clock-on and clock-off hours, rain, wind, district, and the number of rides."""

    def __init__(self, n=640, seed=404):
        g = torch.Generator().manual_seed(seed)
        start = torch.randint(0, 24, (n,), generator=g)
        hours = torch.randint(3, 11, (n,), generator=g)
        hours[357] = 24                    # the night of the marathon: one courier rode around the clock
        self.start, self.end = start, (start + hours) % 24
        self.weather = torch.randn(n, 3, generator=g)
        self.district = torch.randint(0, 8, (n,), generator=g)
        rate = torch.exp(0.6 - 0.3 * self.weather[:, 0] + 0.1 * (self.district.float() - 4))
        self.rides = torch.poisson(rate * hours, generator=g)

    def __len__(self):
        return len(self.rides)

    def __getitem__(self, i):
        return {"start": self.start[i], "end": self.end[i], "weather": self.weather[i],
                "district": self.district[i], "rides": self.rides[i]}


class RideRate(nn.Module):
    def __init__(self):
        super().__init__()
        self.where = nn.Embedding(8, 6)
        self.net = nn.Sequential(nn.Linear(11, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, weather, district, start):
        a = start.float() * (2 * torch.pi / 24)
        x = torch.cat([weather, self.where(district), a.sin()[:, None], a.cos()[:, None]], 1)
        return self.net(x).squeeze(1)


class CourierModule(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.rate = RideRate()
        self.log_size = nn.Parameter(torch.tensor(1.0))

    def nb_nll(self, y, log_mu):
        r = self.log_size.exp()
        log_total = torch.logaddexp(self.log_size, log_mu)
        return -(torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
                 + r * (self.log_size - log_total) + y * (log_mu - log_total)).mean()

    def training_step(self, batch, batch_idx):
        hours = (batch["end"] - batch["start"]) % 24
        offset = hours.float().log()
        log_mu = self.rate(batch["weather"], batch["district"], batch["start"]) + offset
        loss = self.nb_nll(batch["rides"], log_mu)
        print(f"step {batch_idx + 1} nll {loss.item():.6f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3)


if __name__ == "__main__":
    torch.manual_seed(19)
    model = CourierModule()
    loader = DataLoader(Shifts(), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(20))
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=5.0)
    trainer.fit(model, loader)
    print(sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)
