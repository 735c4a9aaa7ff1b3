"""Marionette poses: an autoencoder whose codes are kept apart, and a critic that tells real poses from
reconstructed ones. Manual optimization, two optimizers, in one LightningModule."""
import logging
import warnings

warnings.filterwarnings("ignore")

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

for noisy in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
    logging.getLogger(noisy).setLevel(logging.ERROR)

JOINTS = 9


class PoseReel(Dataset):
    """Frames of a filmed rehearsal. The camera stood still for a moment in the second act."""

    def __init__(self, n=12 * 30):
        g = torch.Generator().manual_seed(77)
        phase = torch.rand(n, 1, generator=g) * 6.283
        limb = torch.arange(JOINTS * 2) / 3.0
        self.frames = torch.sin(phase + limb) + 0.1 * torch.randn(n, JOINTS * 2, generator=g)
        self.frames[12 * 16 + 5] = self.frames[12 * 16 + 4]

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        return self.frames[i]


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


class Marionette(L.LightningModule):
    def __init__(self, code=6, repel=0.05):
        super().__init__()
        self.automatic_optimization = False
        self.encoder = mlp(JOINTS * 2, 32, code)
        self.decoder = mlp(code, 32, JOINTS * 2)
        self.critic = mlp(JOINTS * 2, 24, 1)
        self.repel = repel

    def configure_optimizers(self):
        auto = torch.optim.AdamW([*self.encoder.parameters(), *self.decoder.parameters()], lr=3e-3)
        crit = torch.optim.RMSprop(self.critic.parameters(), lr=5e-4)
        return auto, crit

    def crowding(self, z):
        """Mean of exp(-distance) over the pairs of codes: small where the codes are spread out."""
        i, j = torch.triu_indices(len(z), len(z), offset=1)
        gap = (z[i] - z[j]).pow(2).sum(-1)
        dist = torch.sqrt(gap)
        return torch.exp(-dist).mean()

    def training_step(self, x, idx):
        auto, crit = self.optimizers()

        z = self.encoder(x)
        y = self.decoder(z)
        rec = nn.functional.mse_loss(y, x)
        fool = -self.critic(y).mean()
        loss = rec + 0.02 * fool + self.repel * self.crowding(z)
        self.toggle_optimizer(auto)
        auto.zero_grad()
        self.manual_backward(loss)
        auto.step()
        self.untoggle_optimizer(auto)

        self.toggle_optimizer(crit)
        real, fake = self.critic(x), self.critic(y.detach())
        hinge = torch.relu(1 - real).mean() + torch.relu(1 + fake).mean()
        crit.zero_grad()
        self.manual_backward(hinge)
        crit.step()
        self.untoggle_optimizer(crit)
        print(f"frame-batch {idx:02d}  auto {loss.item():.6f}  critic {hinge.item():.6f}")


def main():
    L.seed_everything(31, verbose=False)
    model = Marionette()
    loader = DataLoader(PoseReel(), batch_size=12, shuffle=False)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, loader)
    print("sum of weights", sum(p.double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
