"""Fit of ferrofluid magnetisation curves: a small network predicts the particle moment from the synthesis recipe."""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


class LangevinLaw(torch.autograd.Function):
    """coth(x) - 1/x, the mean alignment of a dipole in a field."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        safe = torch.where(x.abs() < 0.05, torch.ones_like(x), x)
        return torch.where(x.abs() < 0.05, x / 3, 1 / torch.tanh(safe) - 1 / safe)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        slope = 1 / x.square() - 1 / torch.sinh(x).square()
        return grad * slope


class Magnetisation(nn.Module):
    def __init__(self):
        super().__init__()
        self.saturation = nn.Parameter(torch.tensor(0.5))

    def forward(self, moment, field):
        return self.saturation * LangevinLaw.apply(moment * field)


class FerrofluidModule(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.recipe = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 1), nn.Softplus())
        self.law = Magnetisation()

    def training_step(self, batch, batch_idx):
        recipe, field, measured = batch
        moment = 0.5 + self.recipe(recipe)
        loss = nn.functional.smooth_l1_loss(self.law(moment, field), measured, beta=0.2)
        self.last = loss.detach()
        return loss

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=0.02)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.StepLR(opt, 2, 0.7)}


class Lines(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        print(f"step {trainer.global_step} loss {module.last.item():.6f}")


def sweep(samples=120, points=9):
    g = torch.Generator().manual_seed(21)
    recipe = torch.rand(samples, 4, generator=g)
    strength = 0.6 + 4.0 * torch.rand(samples, points, generator=g)
    side = torch.where(torch.rand(samples, points, generator=g) < 0.5, -1.0, 1.0)
    field = strength * side
    field[75, 4] = 0.0          # the operator let this sample pass through zero field
    moment = 1.0 + (recipe @ torch.tensor([1.0, -0.5, 0.8, 0.2]))[:, None]
    x = (moment * field).double()
    curve = torch.where(x == 0, 0.0, 1 / torch.tanh(x) - 1 / x)
    measured = 0.9 * curve + 0.01 * torch.randn(samples, points, generator=g)
    return TensorDataset(recipe, field, measured.float())


if __name__ == "__main__":
    L.seed_everything(21, verbose=False)
    module = FerrofluidModule()
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Lines()],
    )
    trainer.fit(module, DataLoader(sweep(), batch_size=6))
    print("weights, summed squares:", sum(p.detach().pow(2).sum().item() for p in module.parameters()))
