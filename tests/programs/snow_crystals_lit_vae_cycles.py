import logging
import math
import warnings

import torch
from torch import nn
import lightning as L

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

SIDE, LATENT, CYCLE = 14, 4, 12


def crystals(n, seed=19):
    """Sixfold plates and stars: radius as a harmonic of the angle."""
    g = torch.Generator().manual_seed(seed)
    axis = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    r, phi = torch.hypot(x, y), torch.atan2(y, x)
    arm = torch.rand(n, 1, 1, generator=g)
    size = 0.5 + 0.4 * torch.rand(n, 1, 1, generator=g)
    edge = size * (1 - 0.5 * arm * (1 - torch.cos(6 * phi)) / 2)
    return torch.sigmoid((edge - r) * 12).flatten(1)


class CrystalVAE(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SIDE * SIDE, 32), nn.ELU(), nn.Linear(32, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, 32), nn.ELU(), nn.Linear(32, SIDE * SIDE))
        self.log_noise = nn.Parameter(torch.tensor(-1.0))
        self.best = math.inf

    def on_train_batch_start(self, batch, batch_idx):
        cycle, place = divmod(self.global_step, CYCLE)
        self.beta = 0.0 if place < 4 else min(1.0, (place - 3) / 4)
        if place == 0 and cycle:
            # a new cycle: fresh last layer, the noise scale opened up again
            self.decoder[2].reset_parameters()
            with torch.no_grad():
                self.log_noise.fill_(-1.0)
            self.best = math.inf
        self.encoder.requires_grad_(place < 10)

    def training_step(self, batch, batch_idx):
        (x,) = batch
        mu, log_var = self.encoder(x).chunk(2, dim=-1)
        z = mu + torch.exp(0.5 * log_var) * torch.randn_like(mu)
        off = (self.decoder(z) - x) * torch.exp(-self.log_noise)
        nll = (0.5 * off ** 2 + self.log_noise).sum(-1).mean() + 0.5 * SIDE * SIDE * math.log(2 * math.pi)
        kl = 0.5 * (mu ** 2 + log_var.exp() - 1 - log_var).mean(0)
        loss = nll + self.beta * kl.clamp(min=0.5).sum()
        self.best = min(self.best, loss.item())
        print(f"step {self.global_step + 1} beta {self.beta:.2f} -elbo {loss.item():.3f} best of cycle {self.best:.3f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.NAdam(self.parameters(), lr=1e-2)


def main():
    L.seed_everything(3, verbose=False)
    data = torch.utils.data.TensorDataset(crystals(12 * 16))
    vae = CrystalVAE()
    trainer = L.Trainer(
        max_steps=3 * CYCLE, max_epochs=-1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=50.0)
    trainer.fit(vae, torch.utils.data.DataLoader(data, batch_size=16, shuffle=True))
    print("sum of squares of the parameters:", sum(p.detach().pow(2).sum().item() for p in vae.parameters()))


if __name__ == "__main__":
    main()
