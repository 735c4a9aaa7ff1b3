"""Sundial photographs: a Lipschitz energy (critic) between real and mirrored shadows, Lightning DDP, EMA callback.

The one-sided slope penalty wants the norm of d energy / d input, so each training step differentiates twice.
"""
import logging
import warnings

warnings.filterwarnings("ignore")

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from lightning.pytorch.strategies import DDPStrategy

logging.getLogger("lightning").setLevel(logging.ERROR)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

HOURS, DAYS = 12, 192


class Shadows(Dataset):
    """Twelve hourly shadow lengths a day and the same day mirrored at noon; exposure is corrected by the camera."""

    def __init__(self):
        g = torch.Generator().manual_seed(8)
        hour = torch.arange(HOURS) - 5.0
        tilt = torch.rand(DAYS, 1, generator=g)
        self.real = torch.cosh(hour * 0.3 + tilt) / 3 + 0.05 * torch.randn(DAYS, HOURS, generator=g)
        self.fake = self.real.flip(1)
        # somebody left the lens cap on for a day: a black plate, stored with the offset of the sensor
        self.real[82] = -40.0
        self.fake[82] = -40.0

    def __len__(self):
        return DAYS

    def __getitem__(self, i):
        return self.real[i], self.fake[i]


class SlopeCritic(pl.LightningModule):
    def __init__(self, lr=2e-3, weight=2.0):
        super().__init__()
        self.lr, self.weight = lr, weight
        self.energy = nn.Sequential(nn.Linear(HOURS, 32), nn.ReLU(), nn.Linear(32, 1))
        with torch.no_grad():
            self.energy[0].weight.abs_()            # longer shadows start with more energy

    def forward(self, x):
        return self.energy(x).squeeze(-1)

    def slope_penalty(self, x):
        x = x.detach().requires_grad_()
        slope, = torch.autograd.grad(self(x).sum(), x, create_graph=True)
        length = slope.square().sum(1).sqrt()
        return torch.relu(length - 1).square().mean() + 0.01 * length.mean()

    def training_step(self, batch, _):
        real, fake = batch
        loss = self(fake).mean() - self(real).mean() + self.weight * self.slope_penalty((real + fake) / 2)
        self.last = loss.detach()
        return loss

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=self.lr, betas=(0.5, 0.9))
        return {"optimizer": opt, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.97),
                                                   "interval": "step"}}


class Ema(pl.Callback):
    def __init__(self, decay=0.8):
        self.decay, self.shadow = decay, None

    def on_train_start(self, trainer, module):
        self.shadow = {n: p.detach().clone() for n, p in module.named_parameters()}

    @torch.no_grad()
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        for n, p in module.named_parameters():
            self.shadow[n].lerp_(p, 1 - self.decay)
        mean = trainer.strategy.reduce(module.last.clone(), reduce_op="mean")
        if trainer.is_global_zero:
            gap = sum((self.shadow[n] - p).abs().sum() for n, p in module.named_parameters())
            print(f"step {trainer.global_step:2d} loss {mean.item():.6f} ema gap {gap.item():.5f}", flush=True)


def main():
    pl.seed_everything(6, verbose=False)
    model = SlopeCritic()
    ema = Ema()
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo"), max_epochs=1,
                         logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                         callbacks=[ema])
    trainer.fit(model, DataLoader(Shadows(), batch_size=4, shuffle=False))
    if trainer.is_global_zero:
        print(f"energy weights {sum(p.double().sum() for p in model.parameters()).item():.6f}")


if __name__ == "__main__":
    main()
