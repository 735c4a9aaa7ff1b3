import logging
import warnings

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def mast_readings(days=36, per_day=48):
    """Wind along and across the valley, in units of its spread: by day up, by night down the valley.

    In the last weeks the lulls of the autumn are in the record as well.
    """
    g = torch.Generator().manual_seed(90)
    along = torch.where(torch.rand(days, per_day, generator=g) < 0.5, 1.6, -1.6)
    along = along + 0.25 * torch.randn(days, per_day, generator=g)
    along[21:, ::6] = 0.2 * torch.randn(days - 21, per_day // 6, generator=g)
    across = 0.3 * along + 0.5 * torch.randn(days, per_day, generator=g)
    return torch.stack([along, across], -1).flatten(0, 1)


class Planar(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.u = nn.Parameter(torch.randn(dim) * 0.3)
        self.w = nn.Parameter(torch.randn(dim) * 0.5)
        self.b = nn.Parameter(torch.zeros(()))

    def forward(self, z):
        a = torch.tanh(z @ self.w + self.b)
        psi = (1 - a ** 2)[:, None] * self.w
        volume = torch.log(1 + psi @ self.u)
        return z + a[:, None] * self.u, volume


class GustDensity(L.LightningModule):
    def __init__(self, depth=4, lr=0.06):
        super().__init__()
        self.save_hyperparameters()
        self.shift = nn.Parameter(torch.zeros(2))
        self.layers = nn.ModuleList(Planar(2) for _ in range(depth))

    def nll(self, x):
        z, total = x + self.shift, 0.0
        for layer in self.layers:
            z, volume = layer(z)
            total = total + volume
        return (0.5 * (z ** 2).sum(1) + 1.8379 - total).mean()

    def training_step(self, batch, batch_idx):
        return self.nll(batch[0])

    def on_train_batch_end(self, outputs, batch, batch_idx):
        print(f"day {self.trainer.global_step}: {outputs['loss'].item():.5f} nats")

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return [opt], [torch.optim.lr_scheduler.ExponentialLR(opt, 0.995)]


if __name__ == "__main__":
    L.seed_everything(7)
    data = mast_readings()
    loader = DataLoader(TensorDataset(data), batch_size=48)
    model = GustDensity()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, loader)
    print("sum of squared flow weights:", sum(p.detach().pow(2).sum().item() for p in model.parameters()))
