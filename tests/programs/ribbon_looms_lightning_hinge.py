"""GAN for ribbon weaving drafts (16 thread heights): Lightning, automatic optimisation off, hinge losses."""
import logging
import math
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

THREADS, LATENT, BATCH = 16, 6, 16


def drafts(n=640):
    g = torch.Generator().manual_seed(1801)
    t = torch.arange(THREADS) / THREADS
    freq = torch.randint(1, 4, (n, 1), generator=g)
    phase = torch.rand(n, 1, generator=g)
    return torch.sign(torch.sin(2 * math.pi * (freq * t + phase)) + 1e-3) * 0.8


class Weaver(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(LATENT, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2),
                                  nn.Linear(48, THREADS), nn.Tanh())

    def forward(self, z):
        return self.body(z)


class Inspector(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 12, 5, padding=2, padding_mode="circular")
        self.out = nn.Linear(12 * THREADS, 1)

    def forward(self, x):
        return self.out(F.leaky_relu(self.conv(x.unsqueeze(1)), 0.2).flatten(1)).squeeze(1)


class RibbonGAN(L.LightningModule):
    def __init__(self, lr_w=1e-3, lr_i=8e-3):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.weaver, self.inspector = Weaver(), Inspector()
        self.steps_w = self.steps_i = 0

    def configure_optimizers(self):
        return (torch.optim.Adam(self.weaver.parameters(), lr=self.hparams.lr_w, betas=(0.5, 0.9)),
                torch.optim.Adam(self.inspector.parameters(), lr=self.hparams.lr_i, betas=(0.5, 0.9)))

    def training_step(self, batch, k):
        (real,) = batch
        ow, oi = self.optimizers()
        z = torch.randn(len(real), LATENT)

        # inspector: it rests while it is perfect (hinge exactly 0: there is nothing to learn)
        self.toggle_optimizer(oi)
        fake = self.weaver(z).detach()
        s_real, s_fake = self.inspector(real), self.inspector(fake)
        loss_i = F.relu(1 - s_real).mean() + F.relu(1 + s_fake).mean()
        if loss_i.item() > 0.02:
            oi.zero_grad()
            self.manual_backward(loss_i)
            oi.step()
            self.steps_i += 1
        self.untoggle_optimizer(oi)

        # weaver: minus the score, so of either sign and without a bound
        self.toggle_optimizer(ow)
        woven = self.weaver(z)
        loss_w = -self.inspector(woven).mean()
        ow.zero_grad()
        self.manual_backward(loss_w)
        ow.step()
        self.steps_w += 1
        self.untoggle_optimizer(ow)

        # how far do the passed ribbons spread? none passed: the mean of nothing; a share of 0 has log10 -inf
        with torch.no_grad():
            passed = woven[s_fake > 0]
            spread = passed.std(0, unbiased=True).mean().item()
            share = torch.log10((s_fake > 0).float().mean()).item()
        print(f"{k + 1:3d} inspector {loss_i.item():.6f} weaver {loss_w.item():+.6f} spread {spread:.4f} log-share {share:.3f}",
              flush=True)


def main():
    L.seed_everything(7, verbose=False)
    loader = DataLoader(TensorDataset(drafts()), batch_size=BATCH, shuffle=True, drop_last=True,
                        generator=torch.Generator().manual_seed(3))
    gan = RibbonGAN()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False)
    trainer.fit(gan, loader)
    print(f"steps {gan.steps_w} + {gan.steps_i}, weights {sum(p.abs().sum().item() for p in gan.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
