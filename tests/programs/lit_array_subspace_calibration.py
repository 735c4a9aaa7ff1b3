"""Gain calibration of an antenna array: the signal subspace of the snapshots must contain the steering vector."""
import logging
import math
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

SENSORS, FRAMES = 8, 4


def steering(angle):
    place = torch.arange(SENSORS, dtype=torch.float32)
    return torch.cos(math.pi * place * math.sin(angle)) / SENSORS ** 0.5


class Recordings(Dataset):
    """Each item: FRAMES snapshots of the array, and the direction of the beacon that was sent."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(31)
        gain = 1.0 + 0.3 * torch.randn(SENSORS, generator=g)
        lost = {69: 2, 118: 1}                       # frames that the receiver dropped are stored as zeros
        self.items = []
        for i in range(n):
            angle = float(torch.rand(1, generator=g)) * 2.0 - 1.0
            amplitude = torch.randn(FRAMES, generator=g)
            snapshots = gain[:, None] * (steering(angle)[:, None] * amplitude + 0.05 * torch.randn(SENSORS, FRAMES, generator=g))
            if i in lost:
                snapshots[:, lost[i]] = 0.0
            self.items.append((snapshots, steering(angle)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class SubspaceResidual(nn.Module):
    def forward(self, corrected, vector):
        basis, _ = torch.linalg.qr(corrected)
        inside = basis @ (basis.mT @ vector.unsqueeze(-1))
        return (vector - inside.squeeze(-1)).square().sum(-1).mean()


class Calibration(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.correction = nn.Parameter(torch.ones(SENSORS))
        self.coupling = nn.Linear(SENSORS, SENSORS, bias=False)
        nn.init.normal_(self.coupling.weight, std=0.02)
        self.criterion = SubspaceResidual()

    def training_step(self, batch, batch_idx):
        snapshots, vector = batch
        corrected = self.correction[:, None] * snapshots
        corrected = corrected + self.coupling(corrected.mT).mT
        return self.criterion(corrected, vector)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        print(f"batch {batch_idx + 1} residual {outputs['loss'].item():.6f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.RAdam(self.parameters(), lr=5e-3)


def main():
    L.seed_everything(9, verbose=False)
    model = Calibration()
    loader = DataLoader(Recordings(180), batch_size=6)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False)
    trainer.fit(model, loader)
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
