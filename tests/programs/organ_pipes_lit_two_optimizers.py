"""Lightning, manual optimisation: a Wasserstein critic and a generator for spectra of organ pipes (16 partials)."""
import logging
import os
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)

PARTIALS, LATENT, BATCH, ROUNDS = 16, 6, 32, 32


def pipes(n, seed):
    g = torch.Generator().manual_seed(seed)
    k = torch.arange(1, PARTIALS + 1).float()
    slope = 0.2 + 0.5 * torch.rand(n, 1, generator=g)
    stopped = (torch.rand(n, 1, generator=g) < 0.4).float()      # stopped pipes: odd partials only
    amp = torch.exp(-slope * k) * (1 - stopped * ((k % 2) == 0))
    level = 20 * torch.log10(amp)                                # -inf dB for the missing partials
    return level, stopped


class Spectra(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(LATENT, 48), nn.ReLU(), nn.Linear(48, PARTIALS))
        self.critic = nn.Sequential(nn.Linear(PARTIALS, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
        self.noise = torch.Generator().manual_seed(3)

    @staticmethod
    def to_amplitude(level):
        return 10 ** (level / 20)                                # -inf dB -> 0

    def penalty(self, real, fake):
        a = torch.rand(len(real), 1, generator=self.noise)
        mix = (a * real + (1 - a) * fake).requires_grad_()
        grad, = torch.autograd.grad(self.critic(mix).sum(), mix, create_graph=True)
        return ((grad.norm(dim=1) - 1) ** 2).mean()

    def training_step(self, batch, batch_idx):
        level, _ = batch
        opt_g, opt_c = self.optimizers()
        real = self.to_amplitude(level)
        z = torch.randn(len(real), LATENT, generator=self.noise)
        # critic
        self.toggle_optimizer(opt_c)
        fake = torch.sigmoid(self.generator(z)).detach()
        gap = self.critic(fake).mean() - self.critic(real).mean()
        loss_c = gap + 10 * self.penalty(real, fake)
        opt_c.zero_grad()
        self.manual_backward(loss_c)
        opt_c.step()
        self.untoggle_optimizer(opt_c)
        # generator, every second batch
        text = "    (rests)"
        if batch_idx % 2 == 1:
            self.toggle_optimizer(opt_g)
            loss_g = -self.critic(torch.sigmoid(self.generator(z))).mean()
            opt_g.zero_grad()
            self.manual_backward(loss_g)
            opt_g.step()
            self.untoggle_optimizer(opt_g)
            text = f"{loss_g.item():+.7f}"
        mean_level = level.mean().item()                         # -inf, only shown
        print(f"round {batch_idx + 1:02d} critic {loss_c.item():+.7f} generator {text} level {mean_level:.2f}", flush=True)

    def configure_optimizers(self):
        return (torch.optim.Adam(self.generator.parameters(), lr=2e-3, betas=(0.5, 0.9)),
                torch.optim.Adam(self.critic.parameters(), lr=4e-3, betas=(0.5, 0.9)))


def main():
    L.seed_everything(1685, verbose=False)
    data = DataLoader(TensorDataset(*pipes(BATCH * ROUNDS, 88)), batch_size=BATCH, shuffle=False)
    module = Spectra()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, data)
    print(f"weights {sum(p.detach().abs().sum().item() for p in module.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
