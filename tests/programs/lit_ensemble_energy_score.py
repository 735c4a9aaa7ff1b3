"""Probabilistic rainfall downscaling: an ensemble network trained on the energy score."""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class RainGenerator(nn.Module):
    def __init__(self, members=4, cells=6):
        super().__init__()
        self.members = members
        self.net = nn.Sequential(nn.Linear(8 + 2, 48), nn.Tanh(), nn.Linear(48, cells))
        nn.init.constant_(self.net[-1].bias, 1.0)

    def forward(self, x):
        x = x.unsqueeze(1).expand(-1, self.members, -1)
        noise = torch.randn(*x.shape[:2], 2)
        rain = nn.functional.softplus(self.net(torch.cat([x, noise], -1)))
        return rain * (rain > 0.1)           # gauges do not record drizzle


class Downscaler(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.generator = RainGenerator()
        self.register_buffer("pairs", torch.triu_indices(4, 4, offset=1))

    def distance(self, a, b):
        return (a - b).square().sum(-1).pow(0.5)

    def training_step(self, batch, batch_idx):
        x, rain = batch
        ens = self.generator(x)
        skill = self.distance(ens, rain.unsqueeze(1)).mean(1)
        spread = self.distance(ens[:, self.pairs[0]], ens[:, self.pairs[1]]).mean(1)
        loss = (skill - 0.5 * spread).mean()
        print(f"{batch_idx} energy score {loss.item():.5f}")
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=2e-2)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 48)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


L.seed_everything(2, verbose=False)
x = torch.randn(48 * 16, 8)
wet = (x[:, :1] > 0.3).float()
rain = 0.3 * wet * (x[:, 2:8].abs() + 0.5 * torch.rand(len(x), 6))
rain[: 8 * 16] += 0.8                   # the monsoon months at the start of the record
loader = DataLoader(TensorDataset(x, rain), batch_size=16, shuffle=False)
module = Downscaler()
trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(module, loader)
print("weights", sum(p.detach().pow(2).sum().item() for p in module.parameters()))
