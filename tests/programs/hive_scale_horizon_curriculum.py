# Forecast of the weight of my hives (kg above the empty hive), 1 then 2 then 4 then 8 days ahead.
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

HORIZONS = [1, 2, 4, 8]


class HiveDays(Dataset):
    def __init__(self, horizon, n=40, seed=3):
        g = torch.Generator().manual_seed(seed)
        days = torch.arange(n + 30, dtype=torch.float32)
        flow = 0.08 * torch.sin(days / 9.0) + 0.01 * torch.randn(n + 30, generator=g)
        weight = flow.cumsum(0)
        weight[37:] -= 0.35     # honey taken off
        self.x = weight.unfold(0, 14, 1)[:n]
        self.y = torch.stack([weight[i + 14:i + 14 + horizon] for i in range(n)])

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i].unsqueeze(-1), self.y[i] - self.x[i][-1]


class HiveForecaster(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 10, batch_first=True)
        self.head = nn.Linear(10, 2 * HORIZONS[0])
        self.best = float("inf")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)

    def train_dataloader(self):
        return DataLoader(HiveDays(HORIZONS[self.current_epoch]), batch_size=4, shuffle=False)

    def on_train_epoch_start(self):
        self.best = float("inf")
        if self.current_epoch > 0:
            self.head = nn.Linear(10, 2 * HORIZONS[self.current_epoch])
            self.trainer.strategy.setup_optimizers(self.trainer)
        # a new head first learns alone for one epoch, on every second stage
        self.gru.requires_grad_(self.current_epoch % 2 == 0)

    def training_step(self, batch, batch_idx):
        x, y = batch
        hidden, _ = self.gru(x)
        mean, log_var = self.head(hidden[:, -1]).chunk(2, dim=-1)
        log_var = log_var - 4.0
        loss = 0.5 * (log_var + (y - mean) ** 2 * torch.exp(-log_var)).mean()
        self.best = min(self.best, loss.item())
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        shown = outputs["loss"].item() * self.trainer.accumulate_grad_batches
        print(f"horizon {HORIZONS[self.current_epoch]} batch {batch_idx + 1:2d} "
              f"nll {shown:9.4f} best {self.best:9.4f}")


def run():
    L.seed_everything(8, verbose=False)
    model = HiveForecaster()
    trainer = L.Trainer(
        max_epochs=len(HORIZONS), accelerator="cpu", devices=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        accumulate_grad_batches=2, gradient_clip_val=5.0, reload_dataloaders_every_n_epochs=1,
        default_root_dir="/tmp",
    )
    trainer.fit(model)
    total = sum(float((w.detach() ** 2).sum()) for w in model.parameters())
    print(f"all weights squared and added: {total:.6f}")


run()
