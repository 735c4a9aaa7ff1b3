"""Day-ahead load forecast: a GRU with Student-t likelihood for the outliers, trained with Lightning."""
import logging
import math
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


class StudentTLikelihood(nn.Module):
    """One number of degrees of freedom for the whole grid, learned with the rest."""

    def __init__(self, df=10.0):
        super().__init__()
        self.df = nn.Parameter(torch.tensor(df))

    def forward(self, loc, scale, y):
        z = (y - loc) / scale
        normaliser = (torch.log(self.df * math.pi) / 2 + torch.lgamma(self.df / 2)
                      - torch.lgamma((self.df + 1) / 2) + torch.log(scale))
        return (normaliser + (self.df + 1) / 2 * torch.log1p(z * z / self.df)).mean()


class Forecaster(L.LightningModule):
    def __init__(self, hidden=24, horizon=6):
        super().__init__()
        self.encoder = nn.GRU(1, hidden, batch_first=True)
        self.loc, self.raw_scale = nn.Linear(hidden, horizon), nn.Linear(hidden, horizon)
        self.likelihood = StudentTLikelihood()
        self.seen = 0

    def forward(self, past):
        _, h = self.encoder(past.unsqueeze(-1))
        return self.loc(h[-1]), F.softplus(self.raw_scale(h[-1])) + 1e-3

    def training_step(self, batch, batch_idx):
        past, future = batch
        return self.likelihood(*self(past), future)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen += 1
        print(f"step {self.seen} nll {outputs['loss'].item():.5f}")

    def configure_optimizers(self):
        slow = [p for n, p in self.named_parameters() if not n.startswith("likelihood")]
        return torch.optim.Adam([{"params": slow, "lr": 3e-3},
                                 {"params": self.likelihood.parameters(), "lr": 0.6}])


def load_curves(n=512, past=36, horizon=6):
    gen = torch.Generator().manual_seed(31)
    t = torch.arange(past + horizon) + 24 * torch.rand(n, 1, generator=gen)
    curve = torch.sin(2 * math.pi * t / 24) + 0.3 * torch.sin(2 * math.pi * t / 12)
    curve = curve + 0.02 * torch.randn(n, past + horizon, generator=gen)
    broken = torch.rand(n, past + horizon, generator=gen) < 0.35                    # telegram errors of the meters
    wild = torch.exp(8 * torch.randn(n, past + horizon, generator=gen))
    series = torch.where(broken, wild, curve)
    return TensorDataset(series[:, :past].clamp(-3, 3), series[:, past:])


if __name__ == "__main__":
    L.seed_everything(5, verbose=False)
    loader = DataLoader(load_curves(), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(2))
    model = Forecaster()
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=5.0)
    trainer.fit(model, loader)
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))
