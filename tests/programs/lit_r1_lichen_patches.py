import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LichenGAN(L.LightningModule):
    """bi-directional GAN on 12x12 lichen patches; R1 lazily, every fourth batch, three optimizers"""

    def __init__(self, zdim=6, r1_gamma=2.0, lazy=4):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.gen = nn.Sequential(nn.Linear(zdim, 48), nn.LeakyReLU(.2), nn.Linear(48, 144), nn.Tanh())
        self.enc = nn.Sequential(nn.Flatten(), nn.Linear(144, 48), nn.LeakyReLU(.2), nn.Linear(48, zdim))
        self.disc = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.LeakyReLU(.2), nn.Linear(64, 1))
        self.register_buffer("gen_average", torch.zeros(144))

    def configure_optimizers(self):
        adam = dict(lr=2e-3, betas=(0.0, 0.99))
        return [torch.optim.Adam(self.gen.parameters(), **adam),
                torch.optim.Adam(self.disc.parameters(), **adam),
                torch.optim.AdamW(self.enc.parameters(), lr=1e-3)]

    def sample(self, n):
        z = torch.randn(n, self.hparams.zdim)
        return z, self.gen(z).view(n, 1, 12, 12)

    def r1(self, real):
        real = real.detach().requires_grad_(True)
        grad, = torch.autograd.grad(self.disc(real).sum(), real, create_graph=True)
        return grad.square().flatten(1).sum(1).mean()

    def training_step(self, batch, idx):
        opt_g, opt_d, opt_e = self.optimizers()
        real, = batch
        # discriminator
        self.toggle_optimizer(opt_d)
        _, fake = self.sample(len(real))
        d_loss = F.softplus(self.disc(fake.detach())).mean() + F.softplus(-self.disc(real)).mean()
        if idx % self.hparams.lazy == 0:
            d_loss = d_loss + 0.5 * self.hparams.r1_gamma * self.hparams.lazy * self.r1(real)
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()
        self.untoggle_optimizer(opt_d)
        # generator, every second batch
        g_loss = torch.tensor(float("nan"))
        if idx % 2:
            self.toggle_optimizer(opt_g)
            _, fake = self.sample(len(real))
            g_loss = F.softplus(-self.disc(fake)).mean()
            opt_g.zero_grad()
            self.manual_backward(g_loss)
            self.clip_gradients(opt_g, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
            opt_g.step()
            self.untoggle_optimizer(opt_g)
        # encoder learns to invert what the generator makes
        self.toggle_optimizer(opt_e)
        z, fake = self.sample(len(real))
        e_loss = F.mse_loss(self.enc(fake.detach()), z)
        opt_e.zero_grad()
        self.manual_backward(e_loss)
        opt_e.step()
        self.untoggle_optimizer(opt_e)
        self.gen_average.lerp_(fake.detach().flatten(1).mean(0), 0.1)
        self.log_dict({"d": d_loss, "e": e_loss})
        print(f"batch {idx:2d} d {d_loss.item():.4f} g {g_loss.item():.4f} e {e_loss.item():.4f}", flush=True)


def patches(n):
    g = torch.Generator().manual_seed(21)
    coarse = torch.rand(n, 1, 4, 4, generator=g) * 2 - 1
    return F.interpolate(coarse, size=(12, 12), mode="bilinear", align_corners=False)


if __name__ == "__main__":
    L.seed_everything(8, verbose=False)
    loader = DataLoader(TensorDataset(patches(480)), batch_size=16, shuffle=True)
    L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
              enable_progress_bar=False, enable_model_summary=False).fit(LichenGAN(), loader)
