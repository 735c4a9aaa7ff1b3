"""Cheese wheel near-infrared scans. Stage 1: denoising autoencoder. Stage 2: a grader on the frozen encoder.
Both by Lightning, one after the other, in one process."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, EarlyStopping
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)

BANDS, GRADES = 40, 4


def scans(n, seed):
    g = torch.Generator().manual_seed(seed)
    grade = torch.randint(0, GRADES, (n,), generator=g)
    wave = torch.linspace(0, 1, BANDS)
    centre = 0.2 + 0.18 * grade.float() + 0.03 * torch.randn(n, generator=g)
    x = torch.exp(-((wave - centre[:, None]) / 0.1) ** 2) + 0.1 * torch.randn(n, BANDS, generator=g)
    x[torch.rand(n, BANDS, generator=g) < 0.08] = float("nan")     # dead detector elements
    grade[torch.rand(n, generator=g) < 0.3] = -100                 # wheels nobody graded yet
    return x, grade


class Encoder(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * BANDS, 32), nn.GELU(), nn.Linear(32, dim))

    def forward(self, x):
        seen = torch.isfinite(x)
        return self.body(torch.cat([torch.where(seen, x, torch.zeros_like(x)), seen.float()], -1))


class Denoiser(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, BANDS))
        self.log_var = nn.Parameter(torch.full((BANDS,), -4.0))

    def training_step(self, batch, i):
        x, _ = batch
        out = self.decoder(self.encoder(x))
        seen = torch.isfinite(x)
        err = (out[seen] - x[seen]) ** 2
        lv = self.log_var.expand_as(x)[seen]
        # Gaussian density: goes below zero as the bands become sharp
        loss = 0.5 * (err * torch.exp(-lv) + lv).mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(opt, 40)}


class Grader(L.LightningModule):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder.requires_grad_(False)
        self.head = nn.Linear(8, GRADES)

    def training_step(self, batch, i):
        x, grade = batch
        logits = self.head(self.encoder(x))
        per = F.cross_entropy(logits, grade, ignore_index=-100, reduction="none")
        loss = per.sum() / (grade >= 0).sum().clamp(min=1)
        hit = (logits.argmax(-1) == grade).float()
        hit[grade < 0] = float("nan")
        for k in range(GRADES):
            self.log(f"recall_{k}", hit[grade == k].mean())     # nan where the batch has none of them
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.head.parameters(), lr=0.5, momentum=0.9)


class OneLine(Callback):
    def __init__(self, title):
        self.title = title

    def on_train_batch_end(self, trainer, module, outputs, batch, i):
        recalls = [f"{v.item():.3f}" for k, v in sorted(trainer.callback_metrics.items()) if k.startswith("recall")]
        print(self.title, trainer.global_step, f"{outputs['loss'].item():.6f}", *recalls, flush=True)


def fit(title, module, loader, epochs):
    trainer = L.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False,
                        callbacks=[OneLine(title), EarlyStopping("train_loss", patience=50, check_on_train_epoch_end=True)])
    trainer.fit(module, loader)


def main():
    L.seed_everything(3, verbose=False)
    data = TensorDataset(*scans(96, seed=5))
    first = Denoiser()
    fit("denoise", first, DataLoader(data, 16, shuffle=True, generator=torch.Generator().manual_seed(1)), 4)
    small = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(2))
    second = Grader(first.encoder)
    fit("grade", second, small, 2)
    print(f"{sum(p.abs().sum().item() for p in second.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
