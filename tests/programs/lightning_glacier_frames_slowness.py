"""Slow features of a time-lapse camera above a glacier; Lightning with manual optimization of two parts."""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
    logging.getLogger(name).setLevel(logging.ERROR)


class FramePairs(Dataset):
    """Frame t and frame t + 1. The camera is read from its buffer, which is not always filled again in time."""

    def __init__(self, count=288, side=16, seed=21):
        g = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.arange(side) / side, torch.arange(side) / side, indexing="ij")
        frames = []
        for t in range(count + 1):
            front = 0.3 + 0.4 * t / count
            ice = torch.sigmoid((front - yy - 0.1 * torch.sin(6 * xx + 0.05 * t)) * 12)
            light = 0.75 + 0.25 * torch.sin(torch.tensor(t * 0.6))
            frames.append(ice * light + 0.03 * torch.randn(side, side, generator=g))
        for t in (171, 228):
            frames[t] = frames[t - 1].clone()
        self.frames = torch.stack(frames).unsqueeze(1)

    def __len__(self):
        return len(self.frames) - 1

    def __getitem__(self, i):
        return self.frames[i], self.frames[i + 1]


class SlowFeatures(L.LightningModule):
    def __init__(self, latent=6):
        super().__init__()
        self.automatic_optimization = False
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.SiLU(),
                                     nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.SiLU(), nn.Flatten(),
                                     nn.Linear(256, latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.SiLU(), nn.Linear(64, 256))
        self.lines = []

    def training_step(self, batch, batch_idx):
        opt_encoder, opt_decoder = self.optimizers()
        now, then = batch
        z_now, z_then = self.encoder(now), self.encoder(then)
        # how far the code moves from one frame to the next, in units of its spread
        spread = z_now.std(0).mean() + 1e-3
        speed = (z_then - z_now).square().sum(1).sqrt() / spread
        rebuilt = self.decoder(z_now)
        recon = (rebuilt - now.flatten(1)).square().mean()
        loss = recon + 0.02 * speed.mean()
        opt_encoder.zero_grad()
        opt_decoder.zero_grad()
        self.manual_backward(loss)
        print(f"batch {batch_idx + 1:2d} recon {recon.item():.6f} speed {speed.mean().item():.6f}", flush=True)
        opt_encoder.step()
        opt_decoder.step()

    def configure_optimizers(self):
        return (torch.optim.Adam(self.encoder.parameters(), lr=2e-3),
                torch.optim.Adam(self.decoder.parameters(), lr=4e-3))


def main():
    L.seed_everything(4, verbose=False)
    model = SlowFeatures()
    loader = DataLoader(FramePairs(), batch_size=8, shuffle=False)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, loader)
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
