import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitRegressor(L.LightningModule):
    def __init__(self, hidden=24):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(7, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x).squeeze(1), y)
        print(self.global_step, loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val", nn.functional.mse_loss(self.net(x).squeeze(1), y))

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    L.seed_everything(0, verbose=False)
    x = torch.randn(60, 7)
    loader = DataLoader(TensorDataset(x, x[:, 0] * x[:, 1]), batch_size=12)
    lit = LitRegressor()
    L.Trainer(max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
              enable_model_summary=False, gradient_clip_val=1.0).fit(lit, loader, loader)
    print("weights", sum(p.double().sum().item() for p in lit.parameters()))
