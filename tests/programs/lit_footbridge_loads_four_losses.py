import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


def crossing_groups(n=240):
    """Strain gauges while a group of walkers crosses; some groups have no turnstile count, some cells are missing."""
    g = torch.Generator().manual_seed(99)
    walkers = torch.randint(1, 30, (n,), generator=g).float()
    pace = 1.6 + 0.5 * torch.rand(n, generator=g)
    mass = walkers * (68 + 6 * torch.randn(n, generator=g))
    shape = torch.linspace(0.4, 1.0, 8)
    strain = mass[:, None] / 1000 * shape + 0.3 * torch.sin(pace[:, None] * torch.arange(8)) + 0.05 * torch.randn(n, 8, generator=g)
    strain[torch.rand(n, 8, generator=g) < 0.08] = torch.nan
    counted = walkers.clone()
    counted[torch.rand(n, generator=g) < 0.5] = torch.nan
    counted[48:72] = torch.nan
    return strain, mass / 1000, counted / 10, pace


class BridgeLoads(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU())
        self.mass = nn.Linear(32, 1)
        self.count = nn.Linear(32, 1)
        self.pace = nn.Linear(32, 2)
        self.log_var = nn.Parameter(torch.zeros(3))

    def forward(self, strain):
        known = ~strain.isnan()
        h = self.trunk(torch.cat([strain.nan_to_num(0.0), known.float()], -1))
        return self.mass(h).squeeze(-1), self.count(h).squeeze(-1), self.pace(h)

    def training_step(self, batch, batch_idx):
        strain, mass, counted, pace = batch
        m, c, p = self(strain)
        load = F.huber_loss(m, mass)
        has = ~counted.isnan()
        heads = F.mse_loss(c[has], counted[has], reduction="sum") / has.sum().clamp(min=1)
        rhythm = F.gaussian_nll_loss(p[:, 0], pace, p[:, 1].exp())
        limit = F.relu(m - 5.0).square().mean()
        parts = torch.stack([load, heads, rhythm])
        loss = (parts * (-self.log_var).exp() + 0.5 * self.log_var).sum() + limit
        print(f"epoch {self.current_epoch} batch {batch_idx}: loss {loss.item():.4f} "
              f"load {load.item():.4f} heads {heads.item():.4f} rhythm {rhythm.item():.4f} limit {limit.item():.4f}")
        return loss

    def on_train_epoch_start(self):
        if self.current_epoch == 2:
            self.pace.reset_parameters()
            self.trunk[0].requires_grad_(False)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=2e-2)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.StepLR(opt, 1, 0.6)}


if __name__ == "__main__":
    L.seed_everything(99, verbose=False)
    model = BridgeLoads()
    loader = DataLoader(TensorDataset(*crossing_groups()), batch_size=24, shuffle=False)
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=5.0)
    trainer.fit(model, loader)
    print("sum of squares of the weights", sum(p.detach().square().sum().item() for p in model.parameters()))
