"""Energies and forces of triatomic molecules from two bond lengths and the angle between them (Lightning)."""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def internal_coordinates(pos):
    a, b = pos[:, 0] - pos[:, 1], pos[:, 2] - pos[:, 1]
    ra, rb = a.square().sum(-1).sqrt(), b.square().sum(-1).sqrt()
    cosine = (a * b).sum(-1) / (ra * rb)
    return ra, rb, cosine


def reference(pos):
    """Stands for the quantum chemistry."""
    pos = pos.double().requires_grad_()
    ra, rb, cosine = internal_coordinates(pos)
    energy = 2.0 * ((ra - 1.1) ** 2 + (rb - 1.1) ** 2) + 0.4 * (cosine + 0.5) ** 2 + 0.3 * (ra - 1.1) * (rb - 1.1)
    (grad,) = torch.autograd.grad(energy.sum(), pos)
    return energy.detach().float(), -grad.float()


def geometries(n=480, seed=21):
    g = torch.Generator().manual_seed(seed)
    angle = 1.5 + 0.9 * torch.rand(n, generator=g)
    r = 1.1 + 0.15 * torch.randn(n, 2, generator=g).clamp(-2, 2)
    pos = torch.zeros(n, 3, 3)
    pos[:, 0, 0] = r[:, 0]
    pos[:, 2, 0], pos[:, 2, 1] = r[:, 1] * torch.cos(angle), r[:, 1] * torch.sin(angle)
    rotation = torch.linalg.qr(torch.randn(n, 3, 3, generator=g))[0]
    pos = pos @ rotation
    # the four relaxed structures that came with the set: H2O, SO2, CO2, O3
    pos[301] = torch.tensor([[0.757, 0.587, 0.0], [0.0, 0.0, 0.0], [-0.757, 0.587, 0.0]])
    pos[302] = torch.tensor([[1.235, 0.723, 0.0], [0.0, 0.0, 0.0], [-1.235, 0.723, 0.0]])
    pos[303] = torch.tensor([[0.0, 0.0, 1.162], [0.0, 0.0, 0.0], [0.0, 0.0, -1.162]])
    pos[304] = torch.tensor([[1.089, 0.667, 0.0], [0.0, 0.0, 0.0], [-1.089, 0.667, 0.0]])
    return pos


class Potential(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, pos):
        ra, rb, cosine = internal_coordinates(pos)
        angle = torch.acos(cosine.clamp(-1.0, 1.0))
        return self.net(torch.stack([ra - 1.1, rb - 1.1, angle - 2.0], -1)).squeeze(-1)


class ForceMatching(L.LightningModule):
    def __init__(self, lr=5e-3, force_weight=0.5):
        super().__init__()
        self.save_hyperparameters()
        self.potential = Potential()

    def training_step(self, batch, batch_idx):
        pos, energy, force = batch
        pos = pos.requires_grad_()
        predicted = self.potential(pos)
        (slope,) = torch.autograd.grad(predicted.sum(), pos, create_graph=True)
        loss = (predicted - energy).square().mean() + self.hparams.force_weight * (-slope - force).square().mean()
        print(f"batch {self.global_step + 1} loss {loss.item():.5f}", flush=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)]


if __name__ == "__main__":
    L.seed_everything(4, verbose=False)
    positions = geometries()
    loader = DataLoader(TensorDataset(positions, *reference(positions)), batch_size=16)
    module = ForceMatching()
    L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
              enable_model_summary=False, gradient_clip_val=5.0).fit(module, loader)
    print("%.6f" % sum(p.detach().abs().sum().item() for p in module.parameters()))
