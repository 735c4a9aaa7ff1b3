"""Which button came off which coat: embeddings with distance-weighted triplets, Lightning."""
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

PIXELS = 14
STEPS = 30
PER_BATCH = 24          # eight buttons, three photos of each


class ButtonTray(Dataset):
    """Item i is one whole batch: the photos of eight kinds of button."""

    def __init__(self, seed=3):
        g = torch.Generator().manual_seed(seed)
        kinds = torch.randn(60, 1, PIXELS, PIXELS, generator=g)
        self.batches = []
        for _ in range(STEPS):
            chosen = torch.randperm(60, generator=g)[:8].repeat_interleave(3)
            photos = kinds[chosen] + 0.8 * torch.randn(PER_BATCH, 1, PIXELS, PIXELS, generator=g)
            self.batches.append([photos, chosen])
        # the same file was uploaded for two kinds by a volunteer
        photos = self.batches[16][0]
        photos[10] = photos[4]

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        return self.batches[index]


class DistanceWeightedMiner(nn.Module):
    """Wu et al. 2017: negatives are drawn with the inverse of the density of distances on the sphere."""

    def __init__(self, dim, seed):
        super().__init__()
        self.dim = dim
        self.gen = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def forward(self, z, label):
        d = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")
        log_weight = (2.0 - self.dim) * d.log() - 0.5 * (self.dim - 3) * torch.log1p(-0.25 * d ** 2)
        same = label[:, None] == label[None]
        log_weight = log_weight.masked_fill(same, -torch.inf)
        weight = torch.exp(log_weight - log_weight.amax(1, keepdim=True))
        negative = torch.multinomial(weight, 2, replacement=True, generator=self.gen)
        eye = torch.eye(len(z), dtype=torch.bool)
        anchor, positive = torch.nonzero(same & ~eye, as_tuple=True)
        pick = torch.arange(len(anchor)) % 2
        return anchor, positive, negative[anchor, pick]


class ButtonNet(L.LightningModule):
    def __init__(self, dim=16, margin=0.2):
        super().__init__()
        self.margin = margin
        self.conv = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten())
        self.out = nn.Linear(24 * 9, dim)
        self.miner = DistanceWeightedMiner(dim, 41)

    def forward(self, photos):
        return F.normalize(self.out(self.conv(photos)), dim=1)

    def training_step(self, batch, index):
        photos, label = batch
        z = self(photos)
        a, p, n = self.miner(z, label)
        near = (z[a] - z[p]).pow(2).sum(1)
        far = (z[a] - z[n]).pow(2).sum(1)
        loss = F.relu(near - far + self.margin).mean()
        print(f"step={index + 1} loss={loss.item():.6f} near={near.mean().item():.5f} far={far.mean().item():.5f}",
              flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main():
    L.seed_everything(8, verbose=False)
    net = ButtonNet()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(net, DataLoader(ButtonTray(), batch_size=None, shuffle=False))
    print(f"{sum(p.detach().abs().sum().item() for p in net.parameters()):.6f}")


if __name__ == "__main__":
    main()
