"""Density of customs declarations by a normalising flow (RealNVP with batch norm layers), in Lightning.

An odd declaration has a low density and is looked at by an officer.
"""
import math
import warnings

import lightning.pytorch as pl
import logging
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
COLUMNS = ["log_value", "weight", "duty_rate", "parcels", "days_in_store", "surcharge"]
PER_DAY, DAYS = 48, 34


def declarations(seed=15):
    """One batch is one day. Surcharges are levied by the port; it waived them on its jubilee, day 26."""
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(DAYS, PER_DAY, 3, generator=g)
    value = base[..., 0]
    weight = 0.7 * value + 0.5 * base[..., 1]
    duty = torch.sigmoid(base[..., 2] - 0.3 * value)
    parcels = torch.poisson(torch.exp(0.4 * weight), generator=g)
    days = torch.rand(DAYS, PER_DAY, generator=g) * 9
    surcharge = (0.2 * weight.abs() + 0.1 * torch.rand(DAYS, PER_DAY, generator=g)).round(decimals=2)
    surcharge[25] = 0.0
    return torch.stack([value, weight, duty, parcels, days, surcharge], -1).reshape(-1, len(COLUMNS))


class BatchNormFlow(nn.Module):
    """Invertible batch norm: log-det is minus half the sum of log variances, plus log gamma."""

    def __init__(self, dim, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.log_gamma = nn.Parameter(torch.zeros(dim))
        self.beta = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, x):
        if self.training:
            mean, var = x.mean(0), x.var(0, unbiased=False)
            self.running_mean.lerp_(mean.detach(), self.momentum)
            self.running_var.lerp_(var.detach(), self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        scaled = (x - mean) / var.sqrt()
        log_det = self.log_gamma.sum() - 0.5 * var.log().sum()
        return scaled * self.log_gamma.exp() + self.beta, log_det.expand(len(x))


class Coupling(nn.Module):
    def __init__(self, dim, flip):
        super().__init__()
        mask = (torch.arange(dim) % 2 == int(flip)).float()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(nn.Linear(dim, 32), nn.Tanh(), nn.Linear(32, 2 * dim))
        nn.init.zeros_(self.net[-1].weight)

    def forward(self, x):
        s, t = self.net(x * self.mask).chunk(2, -1)
        s = torch.tanh(s) * (1 - self.mask)
        return x * s.exp() + t * (1 - self.mask), s.sum(-1)


class DeclarationFlow(pl.LightningModule):
    def __init__(self, dim=len(COLUMNS), depth=3):
        super().__init__()
        layers = []
        for d in range(depth):
            layers += [BatchNormFlow(dim), Coupling(dim, d % 2)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        total = x.new_zeros(len(x))
        for layer in self.layers:
            x, log_det = layer(x)
            total = total + log_det
        return -0.5 * (x * x + math.log(2 * math.pi)).sum(-1) + total

    def training_step(self, batch, idx):
        nll = -self(batch[0]).mean() / len(COLUMNS)
        print(f"day {idx + 1:2d}  nll per column {nll.item():.8f}", flush=True)
        return nll

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3)


def main():
    pl.seed_everything(1, verbose=False)
    flow = DeclarationFlow()
    loader = DataLoader(TensorDataset(declarations()), batch_size=PER_DAY, shuffle=False)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=5.0)
    trainer.fit(flow, loader)
    print("sum of absolute weights", f"{sum(p.detach().abs().sum().item() for p in flow.parameters()):.6f}")


if __name__ == "__main__":
    main()
