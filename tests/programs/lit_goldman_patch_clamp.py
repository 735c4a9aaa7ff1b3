"""Drug block of a potassium channel from a voltage-step protocol (GHK current equation)."""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

RT_F = 25.69  # mV at 25 C


class VoltageSteps(Dataset):
    """One item is one sweep: a command potential and 16 cells at various doses."""

    def __init__(self, first=-100, last=70, by=10):
        g = torch.Generator().manual_seed(31)
        self.sweeps = []
        for mv in range(first, last + 1, by):
            dose = torch.rand(16, 1, generator=g) * 3
            k_in = 130 + 10 * torch.randn(16, 1, generator=g)
            k_out = 4 + torch.rand(16, 1, generator=g)
            perm = 1.4 / (1 + dose) + 0.1
            v = torch.full((16, 1), float(mv)) + 1e-3
            u = v / RT_F
            cur = perm * u * (k_in - k_out * torch.exp(-u)) / (1 - torch.exp(-u)) / 100
            cur = cur + 0.02 * torch.randn(16, 1, generator=g)
            self.sweeps.append((torch.tensor(float(mv)), dose, k_in, k_out, cur))

    def __len__(self):
        return len(self.sweeps)

    def __getitem__(self, i):
        return self.sweeps[i]


class GoldmanCurrent(nn.Module):
    def forward(self, permeability, mv, k_in, k_out):
        u = mv / RT_F
        drive = k_in - k_out * torch.exp(-u)
        current = permeability * (u * drive / (1 - torch.exp(-u)))
        return current / 100


class ChannelBlock(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.dose_response = nn.Sequential(nn.Linear(1, 12), nn.SiLU(), nn.Linear(12, 1), nn.Softplus())
        self.ghk = GoldmanCurrent()
        self.seen = 0

    def training_step(self, batch, batch_idx):
        mv, dose, k_in, k_out, cur = (t.squeeze(0) for t in batch)
        pred = self.ghk(self.dose_response(dose), mv, k_in, k_out)
        loss = nn.functional.smooth_l1_loss(pred, cur)
        self.seen += 1
        print(f"sweep {self.seen:2d} {mv.item():+6.0f} mV  loss {loss.item():.7f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.NAdam(self.parameters(), lr=0.02)


if __name__ == "__main__":
    L.seed_everything(31, verbose=False)
    lit = ChannelBlock()
    fit = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    fit.fit(lit, DataLoader(VoltageSteps(), batch_size=1, shuffle=False))
    print("final", sum(p.detach().abs().sum().item() for p in lit.parameters()))
