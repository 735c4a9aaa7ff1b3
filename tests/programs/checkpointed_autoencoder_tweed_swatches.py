"""Autoencoder for scans of tweed swatches; activations are recomputed to spare memory."""
import math
import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

warnings.simplefilter("ignore")
SIDE = 12


def weave(count, generator):
    r = torch.arange(SIDE, dtype=torch.float32)
    rows, cols = r.view(1, SIDE, 1), r.view(1, 1, SIDE)
    draw = lambda: torch.rand(count, 1, 1, generator=generator)
    twill = torch.sin(2 * math.pi * (rows * (0.1 + 0.1 * draw()) + cols * (0.1 + 0.1 * draw()) + draw()))
    herringbone = torch.sign(torch.sin(2 * math.pi * (cols / 6 + draw())))
    return (twill * herringbone).flatten(1)


class SwatchAutoencoder(nn.Module):
    def __init__(self, code=6):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Sequential(nn.Linear(SIDE * SIDE, 64), nn.GELU()),
            nn.Sequential(nn.Linear(64, code), nn.Tanh()),
            nn.Sequential(nn.Linear(code, 64), nn.GELU()),
            nn.Sequential(nn.Linear(64, 64), nn.GELU()),
            nn.Linear(64, SIDE * SIDE),
        )

    def forward(self, swatches):
        return checkpoint_sequential(self.layers, len(self.layers), swatches, use_reentrant=True)


class Workshop:
    def __init__(self, seed=6):
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.swatches = weave(160, self.generator)
        self.model = SwatchAutoencoder()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)

    def one_step(self):
        pick = torch.randperm(len(self.swatches), generator=self.generator)[:64]
        batch = self.swatches[pick]
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(self.model(batch), batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def run(self, steps):
        for number in range(1, steps + 1):
            print(f"swatch batch {number}: reconstruction error {self.one_step():.5f}")
        print("total weight mass", sum(p.detach().abs().sum().item() for p in self.model.parameters()))


if __name__ == "__main__":
    Workshop().run(45)
