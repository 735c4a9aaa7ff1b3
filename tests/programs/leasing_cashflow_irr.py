"""Leasing desk: learn expected service costs per quarter so that the internal rate matches the quoted one."""
import warnings

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
QUARTERS = 12


def discount(rate, n):
    return (1 + rate).unsqueeze(1) ** -torch.arange(n, dtype=rate.dtype)


class InternalRate(torch.autograd.Function):
    """Rate at which the present value of the flows is zero; the gradient follows from the implicit function."""

    @staticmethod
    def forward(ctx, flows):
        low = torch.full((len(flows),), -0.5)
        high = torch.full((len(flows),), 1.0)
        for _ in range(36):
            mid = (low + high) / 2
            value = (flows * discount(mid, flows.shape[1])).sum(1)
            low = torch.where(value > 0, mid, low)
            high = torch.where(value > 0, high, mid)
        ctx.save_for_backward(flows, mid)
        return mid

    @staticmethod
    def backward(ctx, grad):
        flows, rate = ctx.saved_tensors
        d = discount(rate, flows.shape[1])
        t = torch.arange(flows.shape[1], dtype=rate.dtype)
        slope = -(flows * t * d).sum(1) / (1 + rate)
        return -d * (grad / slope).unsqueeze(1)


def contracts(n=128):
    r = np.random.default_rng(90)
    price = r.uniform(0.8, 3.0, n)
    wear = r.uniform(0, 1, (n, 3))
    income = price[:, None] * 0.11 * np.ones((n, QUARTERS))
    cost = 0.01 + 0.02 * wear[:, :1] + 0.012 * wear[:, 1:2] * np.arange(QUARTERS) / QUARTERS
    active = np.ones((n, QUARTERS + 1))
    for k in range(5, n, 17):
        active[k, r.integers(7, 12):] = 0  # returned early, settled with the last instalment
        income[k] *= 1.6
    active[74] = 0  # signed and withdrawn the same day
    flows = np.concatenate([-price[:, None], income], 1)
    with_cost = (flows - np.pad(cost, ((0, 0), (1, 0)))) * active
    quoted = InternalRate.apply(torch.tensor(with_cost, dtype=torch.float32))
    as32 = lambda a: torch.tensor(a, dtype=torch.float32)
    return TensorDataset(as32(np.column_stack([price, wear])), as32(flows), as32(active), quoted)


class ServiceCosts(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 24), nn.GELU(), nn.Linear(24, QUARTERS), nn.Softplus())

    def forward(self, features):
        return 0.05 * self.net(features)

    def training_step(self, batch, batch_idx):
        features, flows, active, quoted = batch
        cost = nn.functional.pad(self(features), (1, 0))
        rate = InternalRate.apply((flows - cost) * active)
        loss = 1e3 * (rate - quoted).square().mean() + 0.1 * cost.mean()
        print(f"step {self.global_step + 1:2d} loss {loss.item():.5f} mean rate {rate.mean().item():.5f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.NAdam(self.parameters(), lr=2e-3)


if __name__ == "__main__":
    pl.seed_everything(31, verbose=False)
    desk = ServiceCosts()
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(desk, DataLoader(contracts(), batch_size=4))
    print("sum of |w|:", sum(p.detach().abs().sum().item() for p in desk.parameters()))
