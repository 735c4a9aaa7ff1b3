import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def panel(n=320, seed=2):
    """Peak areas of a perfume and how strongly a panel smells citrus in it (0 to 10)."""
    g = torch.Generator().manual_seed(seed)
    peaks = torch.rand(n, 10, generator=g)
    citrus = 5 * peaks[:, 0] + 3 * peaks[:, 1] * peaks[:, 2] + 2 * peaks[:, 3]
    return TensorDataset(peaks, citrus + 0.3 * torch.randn(n, generator=g))


class Nose(L.LightningModule):
    """Fits the score, and keeps pairs that the panel tells apart in the right order.

    The second term is weighted so that it pulls half as strongly as the first at the last layer.
    """

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.trunk = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
        self.last = nn.Linear(24, 1)
        self.batches = 0

    def forward(self, peaks):
        return self.last(self.trunk(peaks))[:, 0]

    def order_term(self, guess, score):
        gap = score[:, None] - score[None]
        apart = gap > 2.5
        return torch.relu(0.3 - (guess[:, None] - guess[None]))[apart].sum() / 10

    def balanced_backward(self, fit, order):
        weights = list(self.parameters())
        first = torch.autograd.grad(fit, weights, retain_graph=True)
        second = torch.autograd.grad(order, weights)
        share = first[-2].norm() / second[-2].norm()
        for w, a, b in zip(weights, first, second):
            w.grad = a + 0.5 * share * b
        return share

    def training_step(self, batch, batch_idx):
        peaks, score = batch
        opt = self.optimizers()
        guess = self(peaks)
        fit = nn.functional.mse_loss(guess, score)
        order = self.order_term(guess, score)
        opt.zero_grad()
        share = self.balanced_backward(fit, order)
        opt.step()
        self.batches += 1
        print(f"batch {self.batches} fit {fit.item():.4f} order {order.item():.4f} share {share.item():.3f}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=8e-3)


def main():
    L.seed_everything(6, verbose=False)
    nose = Nose()
    trainer = L.Trainer(max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(nose, DataLoader(panel(), batch_size=32))
    with torch.no_grad():
        print("norm of all weights", torch.cat([p.flatten() for p in nose.parameters()]).norm().item())


if __name__ == "__main__":
    main()
