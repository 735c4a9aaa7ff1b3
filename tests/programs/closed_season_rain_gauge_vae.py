import logging
import math
import warnings

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

VALLEY, ALPINE, YEARS = 18, 4, 16
GAUGES = VALLEY + ALPINE
FIRST_WEEK, WEEKS = 18, 35          # starts in May
CLOSING_WEEK = 41                   # alpine gauges are shut down for the snow


class WeeklyRain(Dataset):
    """One item per week of the calendar: the sums of that week in sixteen years."""

    def __init__(self):
        gen = torch.Generator().manual_seed(21)
        self.loads = torch.randn(3, GAUGES, generator=gen) * 0.5
        self.gen = gen
        self.items = [self.week(FIRST_WEEK + i) for i in range(WEEKS)]

    def week(self, w):
        fronts = torch.randn(YEARS, 3, generator=self.gen)
        season = 1.2 + 0.5 * math.sin(2 * math.pi * (w - 20) / 52)
        rain = (fronts @ self.loads + season + 0.2 * torch.randn(YEARS, GAUGES, generator=self.gen)).clamp(min=0)
        opened = torch.ones(GAUGES)
        if w >= CLOSING_WEEK:
            opened[VALLEY:] = 0.0
        return rain * opened, opened

    def __len__(self):
        return WEEKS

    def __getitem__(self, i):
        return self.items[i]


class GaugeVAE(pl.LightningModule):
    def __init__(self, latent=3, hidden=24):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2 * GAUGES, hidden), nn.SiLU(), nn.Linear(hidden, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.SiLU(), nn.Linear(hidden, GAUGES))

    def elbo_terms(self, rain, opened):
        mask = opened.expand_as(rain)
        mu, logvar = self.encoder(torch.cat([rain, mask], 1)).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        error = (rain - self.decoder(z)) * mask
        variance = error.square().mean(0)              # best variance of each gauge, in closed form
        rec = 0.5 * YEARS * torch.log(variance).sum()
        kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum()
        return rec, kl

    def training_step(self, batch, idx):
        rain, opened = batch
        rec, kl = self.elbo_terms(rain, opened)
        loss = (rec + kl) / YEARS
        print(f"step {idx + 1} week {FIRST_WEEK + idx}: loss {loss.item():.4f} kl {kl.item() / YEARS:.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=4e-3)


def main():
    torch.manual_seed(21)
    vae = GaugeVAE()
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=5.0)
    trainer.fit(vae, DataLoader(WeeklyRain(), batch_size=None))
    norm = sum(p.detach().abs().sum() for p in vae.parameters())
    print("L1 norm of the weights", f"{norm.item():.5f}")


if __name__ == "__main__":
    main()
