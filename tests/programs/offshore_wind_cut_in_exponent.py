"""Power curve of an offshore wind turbine with Lightning. The first batches look for the learning rate."""
import logging
import os
import warnings

os.environ.setdefault("DS_ACCELERATOR", "cpu")
warnings.filterwarnings("ignore")
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def scada_export(n=1280):
    gen = torch.Generator().manual_seed(66)
    wind = 9.0 * (-torch.log(1 - torch.rand(n, generator=gen))) ** (1 / 2.1)
    yaw_error = 0.2 * torch.randn(n, generator=gen)
    power = 3.6 * torch.tanh(0.5 * (wind - 3.5).clamp(min=0).pow(0.6) * yaw_error.cos() / 2.2)
    return torch.stack([wind, yaw_error], 1), power + 0.03 * torch.randn(n, generator=gen)


class PowerCurve(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut_in = nn.Parameter(torch.tensor(4.0))
        self.exponent = nn.Parameter(torch.tensor(1.04))
        self.rated = nn.Parameter(torch.tensor(3.0))
        self.yaw = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        wind, yaw = x[:, 0], x[:, 1:]
        surplus = (wind - self.cut_in) * (wind > self.cut_in)
        lift = surplus ** self.exponent
        return self.rated * torch.tanh(0.2 * lift * self.yaw(yaw).squeeze(1).exp())


class Turbine(L.LightningModule):
    def __init__(self, probe_batches=8):
        super().__init__()
        self.curve = PowerCurve()
        self.probe_batches = probe_batches
        self.curve_of_losses = []

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-5)

    def on_fit_start(self):
        self.start = {k: v.clone() for k, v in self.curve.state_dict().items()}

    def on_train_batch_start(self, batch, batch_idx):
        opt = self.optimizers()
        if batch_idx < self.probe_batches:
            lr = 1e-5 * 10 ** (batch_idx / 2)
        elif batch_idx == self.probe_batches:
            # a third of the largest rate at which the loss was still falling; then from the start again
            falling = [r for (r, a), (_, b) in zip(self.curve_of_losses, self.curve_of_losses[1:]) if b < a]
            lr = max(falling) / 3
            self.curve.load_state_dict(self.start)
            opt.optimizer.state.clear()
        else:
            return
        for group in opt.param_groups:
            group["lr"] = lr

    def training_step(self, batch, batch_idx):
        x, power = batch
        loss = nn.functional.huber_loss(self.curve(x), power)
        lr = self.optimizers().param_groups[0]["lr"]
        if batch_idx < self.probe_batches:
            self.curve_of_losses.append((lr, loss.item()))
        print(f"batch {batch_idx + 1:3d} lr {lr:.6f} huber {loss.item():.5f} exponent {self.curve.exponent.item():.4f}")
        return loss


def main():
    L.seed_everything(3, verbose=False)
    loader = DataLoader(TensorDataset(*scada_export()), batch_size=32, shuffle=False)
    turbine = Turbine()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(turbine, loader)
    print("absolute sum of the weights:", sum(p.abs().sum().item() for p in turbine.parameters()))


if __name__ == "__main__":
    main()
