import logging
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, StochasticWeightAveraging
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def marsh_plots(n=240):
    g = torch.Generator().manual_seed(21)
    elevation = torch.rand(n, generator=g)
    salinity = torch.rand(n, generator=g)
    creek = torch.rand(n, generator=g)
    biomass = 3 * elevation - 2 * salinity + torch.sin(4 * creek) + 0.1 * torch.randn(n, generator=g)
    x = torch.stack([elevation, salinity, creek], 1) * 2 - 1
    return TensorDataset(x, (biomass - biomass.mean()) / biomass.std())


class Biomass(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.Tanh(),
                                       torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x)[:, 0], y)

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.95)}


class Lines(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        print(f"step {trainer.global_step} mse {outputs['loss'].item():.5f}")


if __name__ == "__main__":
    pl.seed_everything(13, verbose=False)
    model = Biomass(lr=0.05)
    swa = StochasticWeightAveraging(swa_lrs=5.0, swa_epoch_start=4, annealing_epochs=1)
    trainer = pl.Trainer(max_epochs=9, callbacks=[swa, Lines()], gradient_clip_val=1.0, accelerator="cpu",
                         devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                         enable_model_summary=False)
    trainer.fit(model, DataLoader(marsh_plots(), batch_size=48, shuffle=True))
    print("sum of squared weights", sum(p.detach().square().sum().item() for p in model.parameters()))
