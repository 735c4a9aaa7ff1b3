"""Photometric redshifts as a Gaussian, in Lightning; nights with clouds are skipped by returning None."""
import logging
import warnings

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Sky(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.z = torch.rand(n, generator=g)
        bands = torch.linspace(0.3, 1.0, 5)
        self.mag = torch.sin(6 * (self.z[:, None] + bands)) + 0.02 * torch.randn(n, 5, generator=g)
        self.night = torch.arange(n) // 10

    def __len__(self):
        return len(self.z)

    def __getitem__(self, i):
        return {"mag": self.mag[i], "z": self.z[i], "night": self.night[i]}


class PhotoZ(L.LightningModule):
    cloudy = {3, 4, 8}

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(5, 32), torch.nn.Mish(), torch.nn.Linear(32, 2))

    def density(self, batch):
        mean, log_std = self.net(batch["mag"]).unbind(-1)
        return torch.distributions.Normal(mean, 0.01 + log_std.exp()).log_prob(batch["z"])

    def training_step(self, batch, batch_idx):
        if int(batch["night"][0]) in self.cloudy:
            print(f"epoch {self.current_epoch} night {batch_idx} clouds")
            return None
        loss = -self.density(batch).mean()
        print(f"epoch {self.current_epoch} night {batch_idx} {loss.item()!r}")
        return loss

    def validation_step(self, batch, batch_idx):
        score = self.density(batch)
        # the last batch is one galaxy: its spread is nan, which is what we want to see in the table
        self.log("spread", score.std(), batch_size=len(score))
        self.log("log_density", score.mean(), batch_size=len(score))

    def configure_optimizers(self):
        optimizer = torch.optim.Adamax(self.parameters(), lr=0.03)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)}


L.seed_everything(77, verbose=False)
model = PhotoZ()
trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=1)
trainer.fit(model, DataLoader(Sky(110, 1), batch_size=10), DataLoader(Sky(17, 2), batch_size=8))
print("spread", trainer.callback_metrics["spread"].item())
print(sum(p.detach().sum().item() for p in model.parameters()))
