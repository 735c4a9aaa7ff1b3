import logging
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
import lightning.pytorch as pl
from lightning.pytorch.callbacks import StochasticWeightAveraging

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class SparePartsData(pl.LightningDataModule):
    """Monthly demand of spare parts; slow movers are drawn more often than they occur."""

    def setup(self, stage=None):
        g = torch.Generator().manual_seed(5)
        x = torch.randn(384, 6, generator=g)
        rate = torch.exp(1.2 + 0.5 * x[:, 0] - 0.4 * x[:, 1])
        self.demand = torch.poisson(rate, generator=g)
        self.set = TensorDataset(x, self.demand)

    def train_dataloader(self):
        weights = torch.where(self.demand == 0, 4.0, 1.0).double()
        sampler = WeightedRandomSampler(weights, 192, generator=torch.Generator().manual_seed(6))
        return DataLoader(self.set, batch_size=16, sampler=sampler)


class DemandModel(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.poisson_nll_loss(self.net(x).squeeze(1), y, log_input=True)
        print(f"epoch {self.current_epoch} batch {batch_idx:2d} step {self.global_step:2d} nll {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 2, gamma=0.5)]


def run():
    pl.seed_everything(5, verbose=False)
    model = DemandModel()
    trainer = pl.Trainer(max_epochs=6, accumulate_grad_batches=2, gradient_clip_val=1.0, accelerator="cpu", devices=1,
                         logger=False, enable_checkpointing=False, enable_progress_bar=False,
                         enable_model_summary=False,
                         callbacks=[StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=3, annealing_epochs=2)])
    trainer.fit(model, datamodule=SparePartsData())
    print("weights after averaging, sum of squares", round(sum(p.square().sum().item() for p in model.parameters()), 5))


if __name__ == "__main__":
    run()
