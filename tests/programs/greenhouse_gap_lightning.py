"""Forecast greenhouse humidity from sensor windows with gaps; transformer written out, run by Lightning."""
import logging
import math
import tempfile
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
import lightning as L  # noqa: E402

torch.set_num_threads(1)


class Windows(Dataset):
    """Hourly humidity; NaN where the logger did not answer. Order is by time, so no shuffling."""

    def __init__(self, n=160, width=24):
        g = torch.Generator().manual_seed(55)
        hours = torch.arange(n + width + 1.0)
        self.series = 0.6 + 0.2 * torch.sin(hours / 24 * 2 * math.pi) + 0.02 * torch.randn(len(hours), generator=g)
        self.truth = self.series.clone()
        gaps = torch.rand(len(hours), generator=g) < 0.2
        gaps[62:87] = True                       # door of the cabinet stood open, the battery froze
        self.series[gaps] = float("nan")
        self.n, self.width = n, width

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        x = self.series[i:i + self.width]
        return torch.nan_to_num(x, nan=0.0), torch.isnan(x), self.truth[i + self.width]


class GapAttention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, h, missing):
        score = self.q(h) @ self.k(h).transpose(1, 2) / math.sqrt(h.shape[-1])
        score = score.masked_fill(missing[:, None, :], float("-inf"))
        return score.softmax(-1) @ self.v(h)


class Forecaster(L.LightningModule):
    def __init__(self, d=16, width=24, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.inp = nn.Linear(1, d)
        self.pos = nn.Parameter(torch.randn(width, d) * 0.1)
        self.attn = GapAttention(d)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 1)

    def forward(self, x, missing):
        h = self.inp(x.unsqueeze(-1)) + self.pos
        h = self.norm(h + self.attn(h, missing))
        return self.head(h.mean(1)).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, missing, y = batch
        loss = nn.functional.huber_loss(self(x, missing), y, delta=0.1)
        print(f"step {self.global_step + 1} huber {loss.item():.7f} gaps {int(missing.sum())}", flush=True)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.98),
                                                   "interval": "step"}}


def main():
    L.seed_everything(55, verbose=False)
    model = Forecaster()
    with tempfile.TemporaryDirectory() as tmp:
        trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
                            default_root_dir=tmp)
        trainer.fit(model, DataLoader(Windows(), batch_size=4, shuffle=False))
    print("sum", f"{sum(p.detach().double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
