import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class SpectralLinear(nn.Module):
    """Linear layer divided by its largest singular value, one power iteration a call."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) / n_in ** 0.5)
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.register_buffer("u", F.normalize(torch.randn(n_out), dim=0))

    def forward(self, x):
        with torch.no_grad():
            v = F.normalize(self.weight.t() @ self.u, dim=0)
            self.u = F.normalize(self.weight @ v, dim=0)
        sigma = torch.dot(self.u, self.weight @ v)
        return F.linear(x, self.weight / sigma, self.bias)


class Critic(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = SpectralLinear(24, width)
        self.blocks = nn.ModuleList([SpectralLinear(width, width) for _ in range(3)])
        for b in self.blocks[1:]:
            nn.init.zeros_(b.weight)          # a block that is switched on later starts as the identity
        self.head = nn.Linear(width, 1)
        self.depth = 1

    def forward(self, x):
        x = F.leaky_relu(self.stem(x), 0.2)
        for b in self.blocks[: self.depth]:
            x = x + F.leaky_relu(b(x), 0.2)
        return self.head(x).squeeze(-1)


class WaveGAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 24), nn.Tanh())
        self.critic = Critic()

    def configure_optimizers(self):
        return (torch.optim.Adam(self.maker.parameters(), 2e-3, betas=(0.0, 0.9)),
                torch.optim.Adam(self.critic.parameters(), 2e-3, betas=(0.0, 0.9)))

    def on_train_epoch_start(self):
        if self.current_epoch == 2:
            self.critic.depth = 2

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_d = self.optimizers()
        fake = self.maker(torch.randn(len(real), 4))

        self.toggle_optimizer(opt_d)
        loss_d = F.relu(1 - self.critic(real)).mean() + F.relu(1 + self.critic(fake.detach())).mean()
        opt_d.zero_grad()
        self.manual_backward(loss_d)
        opt_d.step()
        self.untoggle_optimizer(opt_d)

        self.toggle_optimizer(opt_g)
        loss_g = -self.critic(fake).mean()
        opt_g.zero_grad()
        self.manual_backward(loss_g)
        opt_g.step()
        self.untoggle_optimizer(opt_g)
        print(f"epoch {self.current_epoch} batch {batch_idx} loss {loss_d.item()!r} maker {loss_g.item()!r}", flush=True)


def main():
    L.seed_everything(17, verbose=False)
    t = torch.linspace(0, 6.28, 24)
    waves = torch.stack([torch.sin(k * t + ph) for k in (1, 2) for ph in torch.linspace(0, 6, 18)])
    loader = DataLoader(TensorDataset(waves), batch_size=8, shuffle=True)
    gan = WaveGAN()
    trainer = L.Trainer(max_epochs=5, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(gan, loader)
    print(sum(p.detach().double().sum() for p in gan.parameters()).item())


if __name__ == "__main__":
    main()
