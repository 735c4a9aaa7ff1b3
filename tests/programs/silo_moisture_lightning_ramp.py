"""Grain-silo moisture from capacitance probes. Lightning, automatic optimization, clipping by norm,
and a home-made LR range test: the first RANGE steps sweep the rate up, then weights and Adam
state go back to the start and training continues with a tenth of the best rate."""
import copy
import logging
import math
import warnings

warnings.filterwarnings("ignore")
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

for chatty in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero"):
    logging.getLogger(chatty).setLevel(logging.ERROR)

RANGE, LOW, HIGH = 14, 1e-5, 0.5


class RangeTest(L.Callback):
    def on_fit_start(self, trainer, pl_module):
        self.saved = copy.deepcopy(pl_module.state_dict())
        self.curve = []
        self.done = False

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if self.done:
            return
        k = trainer.global_step
        if k == RANGE:
            best = min(self.curve, key=lambda p: p[1])[0] / 10
            pl_module.load_state_dict(self.saved)
            opt = trainer.optimizers[0]
            opt.state.clear()
            rate, self.done = best, True
            print(f"range test: settled on {best:.3e}, weights restored")
        else:
            rate = LOW * (HIGH / LOW) ** (k / (RANGE - 1))
        for g in trainer.optimizers[0].param_groups:
            g["lr"] = rate

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        loss = outputs["loss"].item()
        if not self.done:
            self.curve.append((trainer.optimizers[0].param_groups[0]["lr"], loss))
        print(f"{trainer.global_step:3d} sq err (kg^2) {loss:.6e}")


class ValPrinter(L.Callback):
    def on_validation_epoch_end(self, trainer, pl_module):
        m = trainer.callback_metrics
        if "val_mae" in m:
            print(f"  epoch {trainer.current_epoch} mae {m['val_mae'].item():.4f} frozen-grain mae {m['val_frost'].item():.4f}")


class SiloNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.probe = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU())
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return 1000 * self.head(self.probe(x)).squeeze(-1)        # kilograms of water in the silo

    def training_step(self, batch, batch_idx):
        x, y = batch
        return (self(x) - y).square().sum()      # summed on purpose, clipped below

    def validation_step(self, batch, batch_idx):
        x, y = batch
        err = (self(x) - y).abs()
        frost = err[x[:, 8] < -2.6].mean()       # hardly ever any: nan most of the time
        self.log("val_mae", err.mean(), batch_size=len(x))
        self.log("val_frost", frost, batch_size=len(x))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=LOW)


def probes(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 9, generator=g)
    y = 9000 + 2500 * x[:, 0] - 1200 * x[:, 1] * x[:, 2] + 100 * torch.randn(n, generator=g)
    return TensorDataset(x, y)


def main():
    L.seed_everything(31, verbose=False)
    train = DataLoader(probes(16 * 24, 1), batch_size=24)
    val = DataLoader(probes(40, 2), batch_size=20)
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
                        gradient_clip_val=1.0, gradient_clip_algorithm="norm",
                        callbacks=[RangeTest(), ValPrinter()])
    trainer.fit(SiloNet(), train, val)


if __name__ == "__main__":
    main()
