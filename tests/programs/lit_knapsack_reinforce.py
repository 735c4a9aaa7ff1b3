"""Neural combinatorial optimisation, the 0/1 knapsack: REINFORCE with a moving baseline."""
import logging
import tempfile
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def greedy_value(value, weight, capacity):
    """value that the density heuristic packs"""
    order = (value / weight).argsort(dim=1, descending=True)
    v, w = value.gather(1, order), weight.gather(1, order)
    left = capacity.clone()
    total = torch.zeros_like(capacity)
    for k in range(v.size(1)):
        fits = w[:, k] <= left
        total = total + v[:, k] * fits
        left = left - w[:, k] * fits
    return total


class KnapsackPolicy(L.LightningModule):
    def __init__(self, hidden=24):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.register_buffer("baseline", torch.tensor(0.5))

    def rollout(self, value, weight, capacity):
        cap = capacity[:, None].expand_as(value)
        logits = self.score(torch.stack([value, weight, cap], dim=-1)).squeeze(-1)
        take = (torch.rand_like(logits) < logits.sigmoid()).float()
        logp = -nn.functional.binary_cross_entropy_with_logits(logits, take, reduction="none").sum(1)
        # items are put in from left to right, what does not fit stays out
        left, packed = capacity.clone(), torch.zeros_like(capacity)
        for k in range(value.size(1)):
            ok = take[:, k] * (weight[:, k] <= left)
            packed = packed + ok * value[:, k]
            left = left - ok * weight[:, k]
        return packed, logp

    def training_step(self, batch, _):
        value, weight, capacity = batch
        packed, logp = self.rollout(value, weight, capacity)
        reward = packed / greedy_value(value, weight, capacity)
        loss = -((reward - self.baseline) * logp).mean()
        self.baseline.mul_(0.8).add_(0.2 * reward.mean())
        print(f"step {self.global_step + 1:2d} loss {loss.item():+.4f} "
              f"reward {reward.mean().item():.4f} baseline {self.baseline.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def instances(n=320, items=12):
    g = torch.Generator().manual_seed(6)
    value = 0.1 + torch.rand(n, items, generator=g)
    weight = 0.1 + 0.9 * torch.rand(n, items, generator=g)
    capacity = 0.5 + 2.0 * torch.rand(n, generator=g)
    capacity[105] = 0.08
    return TensorDataset(value, weight, capacity)


if __name__ == "__main__":
    L.seed_everything(3, verbose=False)
    policy = KnapsackPolicy()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, default_root_dir=tempfile.mkdtemp())
    trainer.fit(policy, DataLoader(instances(), batch_size=16))
    print(sum(p.detach().pow(2).sum().item() for p in policy.parameters()))
