"""GAN of brooch sketches (parametric outlines) in Lightning, manual optimization, two optimizers.

The critic sees the spread of its minibatch, against mode collapse.
"""
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

POINTS = 24
LATENT = 8


def sketches(n, seed):
    """Closed outlines with three to six lobes, as radius over angle."""
    g = torch.Generator().manual_seed(seed)
    angle = torch.arange(POINTS) / POINTS * 2 * math.pi
    lobes = torch.randint(3, 7, (n, 1), generator=g)
    depth = 0.1 + 0.4 * torch.rand(n, 1, generator=g)
    turn = 2 * math.pi * torch.rand(n, 1, generator=g)
    return 1 + depth * torch.cos(lobes * angle + turn) + 0.02 * torch.randn(n, POINTS, generator=g)


class Draughtsman(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LATENT, width), nn.LayerNorm(width), nn.SiLU(),
                                 nn.Linear(width, width), nn.SiLU(), nn.Linear(width, POINTS))

    def forward(self, z):
        return 1 + self.net(z)


class MinibatchSpread(nn.Module):
    """Appends the mean standard deviation over the batch as one more feature."""

    def forward(self, h):
        spread = (h.var(dim=0) + 1e-8).sqrt().mean()
        return torch.cat([h, spread.expand(len(h), 1)], 1)


class Jeweller(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.conv = nn.Conv1d(1, 12, 5, padding=2, padding_mode="circular")
        self.body = nn.Linear(12 * POINTS, width)
        self.spread = MinibatchSpread()
        self.score = nn.Linear(width + 1, 1)

    def forward(self, x):
        h = F.leaky_relu(self.conv(x[:, None]), 0.2).flatten(1)
        return self.score(self.spread(F.leaky_relu(self.body(h), 0.2))).squeeze(-1)


class BroochGan(L.LightningModule):
    def __init__(self, lr_g=1e-3, lr_d=1e-3, smooth=0.9):
        super().__init__()
        self.automatic_optimization = False
        self.save_hyperparameters()
        self.generator = Draughtsman()
        self.critic = Jeweller()
        self.gen = torch.Generator().manual_seed(101)

    def configure_optimizers(self):
        g = torch.optim.Adam(self.generator.parameters(), lr=self.hparams.lr_g, betas=(0.5, 0.99))
        d = torch.optim.Adam(self.critic.parameters(), lr=self.hparams.lr_d, betas=(0.5, 0.99))
        return g, d

    def latent(self, n):
        return torch.randn(n, LATENT, generator=self.gen)

    def critic_loss(self, real, fake):
        on_real, on_fake = self.critic(real), self.critic(fake)
        return (F.binary_cross_entropy_with_logits(on_real, torch.full_like(on_real, self.hparams.smooth))
                + F.binary_cross_entropy_with_logits(on_fake, torch.zeros_like(on_fake)))

    def generator_loss(self, n):
        return F.softplus(-self.critic(self.generator(self.latent(n)))).mean()

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_d = self.optimizers()

        with torch.no_grad():
            fake = self.generator(self.latent(len(real)))
        loss_d = self.critic_loss(real, fake)
        opt_d.zero_grad()
        self.manual_backward(loss_d)
        opt_d.step()

        self.toggle_optimizer(opt_g)
        loss_g = self.generator_loss(len(real))
        opt_g.zero_grad()
        self.manual_backward(loss_g)
        opt_g.step()
        self.untoggle_optimizer(opt_g)
        self.log_dict({"d": loss_d.detach(), "g": loss_g.detach()})


class Diary(L.Callback):
    def __init__(self):
        self.round = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.round += 1
        m = trainer.callback_metrics
        print(f"round {self.round} critic {m['d'].item():.6f} generator {m['g'].item():.6f}", flush=True)


def main():
    L.seed_everything(17, verbose=False)
    loader = DataLoader(TensorDataset(sketches(193, seed=5)), batch_size=16, shuffle=True,
                        generator=torch.Generator().manual_seed(23))
    model = BroochGan()
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, callbacks=[Diary()])
    trainer.fit(model, loader)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
