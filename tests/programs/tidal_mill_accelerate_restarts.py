"""Power curve of a tidal mill from tide, wind and gate sensors: Gaussian density network with accelerate.

Four micro-batches per update, cosine with warm restarts, targets missing while the gate is shut.
"""

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

NAN = float("nan")


class MillLog(Dataset):
    """Ten-minute records in the order of the log; the gate is shut for whole stretches."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(n).float()
        head = 2.0 * torch.sin(2 * torch.pi * t / 74.5) + 0.1 * torch.randn(n, generator=g)
        wind = 5 + 2 * torch.randn(n, generator=g)
        gate = (torch.rand(n, generator=g) > 0.1).float()
        gate[640:656] = 0.0  # a whole micro-batch without a target
        gate[1000:1016] = 0.0
        power = head.clamp(min=0) ** 1.5 * (1 - 0.02 * wind) + 0.01 * torch.randn(n, generator=g)
        power[1300:1500] += 0.3  # the new wheel
        self.x = torch.stack([head, wind / 5 - 1, gate, torch.cos(2 * torch.pi * t / 74.5)], 1)
        self.y = torch.where(gate > 0, power, torch.full_like(power, NAN))

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.y[i]}


class DensityNet(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.mean = nn.Linear(width, 1)
        self.log_std = nn.Linear(width, 1)
        nn.init.zeros_(self.log_std.weight)
        nn.init.zeros_(self.log_std.bias)

    def forward(self, x):
        h = self.trunk(x)
        return self.mean(h).squeeze(-1), self.log_std(h).squeeze(-1).clamp(-2.5, 3)


def masked_nll(mean, log_std, y):
    """Negative log-likelihood (below zero once the model is sharp) of the targets that are there."""
    there = ~torch.isnan(y)
    filled = torch.where(there, y, torch.zeros_like(y))
    nll = log_std + 0.5 * ((filled - mean) * torch.exp(-log_std)).square()
    return torch.where(there, nll, torch.zeros_like(nll)).sum() / there.sum().clamp(min=1), there


class Meter:
    """Raw statistics for the log: nan where a micro-batch holds no target."""

    def __init__(self):
        self.rows = []

    def add(self, loss, mean, y, there):
        self.rows.append((loss.item(), (mean - y)[there].abs().mean().item(), (mean - y).mean().item()))

    def flush(self):
        rows, self.rows = self.rows, []
        losses, maes, biases = zip(*rows, strict=False)
        return sum(losses) / len(losses), sum(maes) / len(maes), sum(biases) / len(biases)


def main():
    set_seed(64)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=4, mixed_precision="no", step_scheduler_with_optimizer=False
    )
    loader = DataLoader(MillLog(2240, seed=10), batch_size=16, shuffle=False)
    model = DensityNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=10, T_mult=2, eta_min=0.0)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    meter, update = Meter(), 0
    for batch in loader:
        with accelerator.accumulate(model):
            mean, log_std = model(batch["x"])
            loss, there = masked_nll(mean, log_std, batch["y"])
            accelerator.backward(loss)
            meter.add(loss, mean.detach(), batch["y"], there)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            if accelerator.sync_gradients:
                scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            update += 1
            nll, mae, bias = meter.flush()
            accelerator.print(
                f"update {update} nll {nll:.6f} mae {mae:.5f} bias {bias:.5f} norm {norm.item():.5f} "
                f"lr {scheduler.get_last_lr()[0]:.6f}",
                flush=True,
            )
    total = sum(p.detach().abs().sum().item() for p in accelerator.unwrap_model(model).parameters())
    accelerator.print(f"weights {total:.6f}", flush=True)


if __name__ == "__main__":
    main()
