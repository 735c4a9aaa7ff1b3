import logging
import math
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
import lightning as L

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
SIDE = 16


class HoardPhotos(Dataset):
    """Reverse sides of a silver hoard, cut out of tray photographs.

    `frame` is 1 where the cut-out lies on the photograph. Coins at the rim of a tray are cut by its edge.
    """

    def __init__(self, count, rim):
        g = torch.Generator().manual_seed(303)
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
        radius, angle = (xs ** 2 + ys ** 2).sqrt(), torch.atan2(ys, xs)
        self.items = []
        for i in range(count):
            arms = int(torch.randint(3, 6, (1,), generator=g))
            turn = float(torch.rand(1, generator=g)) * math.tau
            relief = 0.5 + 0.3 * torch.cos(arms * angle + turn) * radius
            photo = torch.where(radius < 0.95, relief, torch.tensor(0.15))
            photo = photo + 0.04 * torch.randn(SIDE, SIDE, generator=g)
            frame = torch.ones(SIDE, SIDE)
            if i in rim:
                frame[:, SIDE - 3:] = 0
            self.items.append((photo.clamp(0.02, 0.98) * frame, frame))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class CoinVAE(L.LightningModule):
    def __init__(self, latent=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 64), nn.GELU(), nn.Linear(64, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.GELU(), nn.Linear(64, SIDE * SIDE))

    def log_norm(self, lam):
        gap = 1 - 2 * lam
        return torch.log(2 * torch.atanh(gap) / gap)

    def training_step(self, batch, batch_idx):
        photo, frame = batch
        mean, logvar = self.encoder(photo).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        logits = self.decoder(z).view(-1, SIDE, SIDE) * frame
        cross = F.binary_cross_entropy_with_logits(logits, photo, reduction="none")
        evidence = self.log_norm(torch.sigmoid(logits)) - cross
        kl = 0.5 * (mean ** 2 + logvar.exp() - 1 - logvar).sum(1)
        loss = (kl - evidence.sum((1, 2))).mean()
        print(f"batch {batch_idx + 1:02d}: -elbo {loss.item():.3f}, kl {kl.mean().item():.3f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    L.seed_everything(17, verbose=False)
    coins = HoardPhotos(12 * 32, rim={12 * 21 + 4})
    vae = CoinVAE()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(vae, DataLoader(coins, batch_size=12))
    weights = sum(p.detach().square().sum().item() for p in vae.parameters())
    print(f"squared weights {weights:.6f}")
