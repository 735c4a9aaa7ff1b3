"""Lightning: a SIREN paints a small picture.  The loss is minus the PSNR in decibels, the
gradients of two half pictures are accumulated, and the step is taken by SGD with Nesterov."""
import logging
import math
import tempfile
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)


class Sine(nn.Module):
    def __init__(self, inputs, outputs, omega, first=False):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.omega = omega
        bound = 1 / inputs if first else math.sqrt(6 / inputs) / omega
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.omega * self.linear(x))


class Siren(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(Sine(2, 48, 12.0, first=True), Sine(48, 48, 12.0), nn.Linear(48, 1))
        self.count = 0

    def training_step(self, batch, batch_idx):
        where, grey = batch
        mse = (self.body(where) - grey).pow(2).mean()
        psnr = -10 * torch.log10(mse.clamp_min(1e-10))
        self.count += 1
        print(f"half {self.count:03d} loss {-psnr.item():9.4f} step {self.global_step}")
        return -psnr

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=2e-4, momentum=0.9, nesterov=True)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def picture(side=32):
    axis = torch.linspace(-1, 1, side)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    where = torch.stack([x, y], -1).reshape(-1, 2)
    grey = torch.sin(6 * x * y) * torch.exp(-(x ** 2 + y ** 2))
    order = torch.randperm(side * side, generator=torch.Generator().manual_seed(1))
    return TensorDataset(where[order], grey.reshape(-1, 1)[order])


def main():
    L.seed_everything(2, verbose=False)
    loader = DataLoader(picture(), batch_size=512, num_workers=0)
    with tempfile.TemporaryDirectory() as root:
        trainer = L.Trainer(max_epochs=20, accelerator="cpu", logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
                            default_root_dir=root)
        trainer.fit(Siren(), loader)
    print("pictures painted", trainer.global_step)


if __name__ == "__main__":
    main()
