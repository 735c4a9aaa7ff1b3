"""Sparrow syllable generator: Wasserstein critic with gradient penalty, Lightning, manual optimisation.
Three critic updates for each update of the generator; the losses are negative or near zero most of the time."""
import logging
import warnings

for name in ("lightning", "lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
    logging.getLogger(name).setLevel(logging.ERROR)
warnings.filterwarnings("ignore")

import torch
from torch import nn
import lightning as L
from torch.utils.data import DataLoader, Dataset

BINS = 24


class Syllables(Dataset):
    """Amplitude envelopes over BINS frames; syllables with a pause have frames that are exactly zero."""

    def __init__(self, n=320, seed=12):
        g = torch.Generator().manual_seed(seed)
        t = torch.linspace(0, 1, BINS)
        centre = 0.3 + 0.4 * torch.rand(n, 1, generator=g)
        width = 0.05 + 0.1 * torch.rand(n, 1, generator=g)
        env = torch.exp(-0.5 * ((t - centre) / width) ** 2)
        self.x = env * (env > 0.02)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


class SparrowGAN(L.LightningModule):
    def __init__(self, latent=6, n_critic=3, gp=10.0):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.gen = nn.Sequential(nn.Linear(latent, 32), nn.LeakyReLU(0.2), nn.Linear(32, BINS), nn.Softplus())
        self.critic = nn.Sequential(nn.Linear(BINS, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def configure_optimizers(self):
        return (torch.optim.Adam(self.gen.parameters(), lr=1e-3, betas=(0.0, 0.9)),
                torch.optim.Adam(self.critic.parameters(), lr=3e-3, betas=(0.0, 0.9)))

    def penalty(self, real, fake):
        a = torch.rand(real.size(0), 1)
        mid = (a * real + (1 - a) * fake).requires_grad_(True)
        (grad,) = torch.autograd.grad(self.critic(mid).sum(), mid, create_graph=True)
        length = (grad.pow(2).sum(1) + 1e-12).sqrt()
        return (length - 1).pow(2).mean()

    def training_step(self, real, batch_idx):
        opt_g, opt_c = self.optimizers()
        z = torch.randn(real.size(0), self.hparams.latent)
        fake = self.gen(z).detach()
        loss_c = self.critic(fake).mean() - self.critic(real).mean() + self.hparams.gp * self.penalty(real, fake)
        opt_c.zero_grad()
        self.manual_backward(loss_c)
        opt_c.step()
        text = f"batch {batch_idx:02d} critic {loss_c.item():+.6f}"
        if (batch_idx + 1) % self.hparams.n_critic == 0:
            for p in self.critic.parameters():
                p.requires_grad_(False)
            loss_g = -self.critic(self.gen(z)).mean()
            opt_g.zero_grad()
            self.manual_backward(loss_g)
            opt_g.step()
            for p in self.critic.parameters():
                p.requires_grad_(True)
            text += f" generator {loss_g.item():+.6f}"
        print(text)


if __name__ == "__main__":
    L.seed_everything(77, verbose=False)
    loader = DataLoader(Syllables(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3))
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(SparrowGAN(), loader)
