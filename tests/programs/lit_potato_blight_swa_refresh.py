import logging
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class QuarterSineRamp(LRScheduler):
    """Starts at rest and reaches the full rate after `rise` steps."""

    def __init__(self, optimizer, rise):
        self.rise = rise
        super().__init__(optimizer)

    def get_lr(self):
        x = torch.tensor(min(1.0, self.last_epoch / self.rise))
        return [base * float(torch.sin(0.5 * torch.pi * x)) for base in self.base_lrs]


class BlightNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                                   nn.Conv2d(8, 12, 3, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
                                   nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.disease = nn.Linear(12, 3)
        self.severity = nn.Linear(12, 1)
        self.seen = 0

    def training_step(self, batch, _):
        leaf, disease, severity = batch
        code = self.trunk(leaf)
        rated = ~severity.isnan()
        miss = (self.severity(code).squeeze(1) - torch.where(rated, severity, 0.0)) ** 2
        loss = nn.functional.cross_entropy(self.disease(code), disease)
        if rated.any():
            loss = loss + (miss * rated).sum() / rated.sum()
        self.seen += 1
        print(f"epoch {self.current_epoch} batch {self.seen:2d} loss {loss.item():.4f} rated {int(rated.sum())}")
        return loss

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=0.08, momentum=0.9)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": QuarterSineRamp(opt, 8), "interval": "step"}}


def leaves(n=96):
    g = torch.Generator().manual_seed(77)
    disease = torch.randint(3, (n,), generator=g)
    area = torch.rand(n, generator=g)
    x = 0.15 * torch.randn(n, 3, 14, 14, generator=g)
    x[:, 1] += 0.6
    for i in range(n):
        r = 2 + int(4 * area[i])
        if disease[i] == 1:
            x[i, 0, 4:4 + r, 5:5 + r] += 0.9
        elif disease[i] == 2:
            x[i, :, 3:3 + r, ::2] -= 0.5
    severity = torch.where(disease == 0, 0.0, area)
    severity[torch.rand(n, generator=g) < 0.6] = float("nan")
    severity[32:48] = float("nan")
    return TensorDataset(x, disease, severity)


def main():
    L.seed_everything(5, verbose=False)
    net = BlightNet()
    swa = StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=3, annealing_epochs=1)
    trainer = L.Trainer(max_epochs=5, accelerator="cpu", callbacks=[swa], logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(net, DataLoader(leaves(), batch_size=16))
    print("global step", trainer.global_step)
    print(f"weights, squared and summed: {sum(p.detach().square().sum().item() for p in net.parameters()):.4f}")


main()
