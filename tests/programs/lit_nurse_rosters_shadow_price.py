import logging
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import lightning.pytorch as pl

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
WARDS = 6


class WardDays(Dataset):
    """Forecast (weekday, season, beds booked per ward) and the nurses that were really needed."""

    def __init__(self, n=34 * 8):
        gen = torch.Generator().manual_seed(77)
        booked = 4 + 3 * torch.rand(n, WARDS, generator=gen)
        season = torch.linspace(0, 3.0, n)
        week = torch.arange(n) % 7 / 7
        extra = 1.5 * torch.sin(season)[:, None] * torch.rand(n, WARDS, generator=gen)
        self.x = torch.cat([week[:, None], season[:, None], booked / 7], 1)
        self.need = booked + extra + 0.2 * torch.randn(n, WARDS, generator=gen)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.need[i]


class RosterPlanner(pl.LightningModule):
    """Cheapest roster that covers the need; the cover has a price that is found along the way."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.staffing = nn.Sequential(nn.Linear(WARDS + 2, 24), nn.SiLU(), nn.Linear(24, WARDS))
        self.log_price = nn.Parameter(torch.tensor(0.0))
        self.contracted = 6.0

    def roster(self, x):
        return self.contracted * torch.sigmoid(self.staffing(x))

    def training_step(self, batch, batch_idx):
        x, need = batch
        planner, auctioneer = self.optimizers()
        nurses = self.roster(x)
        wages = nurses.mean()
        shortage = torch.relu(need - nurses).mean()

        price = self.log_price.exp()
        weight = price.detach()
        loss = (wages + weight * shortage) / (1 + weight)
        planner.zero_grad()
        self.manual_backward(loss)
        planner.step()

        auctioneer.zero_grad()
        self.manual_backward(-price * (shortage.detach() - 0.05))
        auctioneer.step()
        print(f"day block {batch_idx + 1:2d}: objective {loss.item():.4f} shortage {shortage.item():.4f} price {price.item():.4g}")

    def configure_optimizers(self):
        planner = torch.optim.Adam(self.staffing.parameters(), lr=3e-2)
        auctioneer = torch.optim.SGD([self.log_price], lr=0.06)
        return planner, auctioneer


pl.seed_everything(9, verbose=False)
plan = RosterPlanner()
trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False)
trainer.fit(plan, DataLoader(WardDays(), batch_size=8, shuffle=False))
print("all weights, absolute:", sum(p.detach().abs().sum() for p in plan.parameters()).item())
