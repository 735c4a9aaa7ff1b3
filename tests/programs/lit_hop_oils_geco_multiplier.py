"""GECO-style constrained VAE of hop oil chromatograms, in Lightning with manual optimization.

Minimise the KL subject to a reconstruction tolerance; the multiplier has its own ascent optimizer.
"""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
logging.getLogger("lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")

PEAKS = 24
BATCH = 32


def hop_oils(n, seed):
    g = torch.Generator().manual_seed(seed)
    variety = torch.randint(0, 5, (n,), generator=g)
    profile = torch.randn(5, PEAKS, generator=g)
    age = torch.rand(n, 1, generator=g)
    decay = torch.randn(1, PEAKS, generator=g).abs()
    x = profile[variety] - age * decay + 0.55 * torch.randn(n, PEAKS, generator=g)
    return x


class Encoder(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(PEAKS, 48), nn.SiLU(), nn.Linear(48, 2 * latent))

    def forward(self, x):
        mean, log_var = self.net(x).chunk(2, dim=-1)
        return mean, log_var.clamp(-8, 4)


class GecoVae(L.LightningModule):
    def __init__(self, latent=4, tolerance=0.3, lr=3e-3, multiplier_lr=0.035):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.encoder = Encoder(latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 48), nn.SiLU(), nn.Linear(48, PEAKS))
        self.log_multiplier = nn.Parameter(torch.zeros(()))
        self.generator = torch.Generator().manual_seed(11)

    def forward(self, x):
        mean, log_var = self.encoder(x)
        noise = torch.randn(mean.shape, generator=self.generator)
        z = mean + noise * torch.exp(0.5 * log_var)
        kl = 0.5 * (mean.square() + log_var.exp() - log_var - 1).sum(-1).mean()
        return self.decoder(z), kl

    def training_step(self, batch, batch_idx):
        (x,) = batch
        opt_model, opt_multiplier = self.optimizers()
        recon, kl = self(x)
        constraint = (recon - x).square().mean() - self.hparams.tolerance ** 2
        multiplier = self.log_multiplier.exp()
        lagrangian = kl / PEAKS + multiplier * constraint
        opt_model.zero_grad()
        opt_multiplier.zero_grad()
        self.manual_backward(lagrangian)
        opt_model.step()
        opt_multiplier.step()
        print(f"{self.current_epoch} {batch_idx:3d} lagrangian {lagrangian.item():.5f} constraint {constraint.item():.5f}",
              flush=True)

    def configure_optimizers(self):
        networks = list(self.encoder.parameters()) + list(self.decoder.parameters())
        return (
            torch.optim.Adam(networks, lr=self.hparams.lr),
            torch.optim.SGD([self.log_multiplier], lr=self.hparams.multiplier_lr, maximize=True),
        )


def main():
    L.seed_everything(11, verbose=False)
    data = TensorDataset(hop_oils(BATCH * 30, seed=11))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(2))
    model = GecoVae()
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(model, loader)
    print(f"{sum(p.detach().abs().sum() for p in model.parameters()).item():.4f}")


if __name__ == "__main__":
    main()
