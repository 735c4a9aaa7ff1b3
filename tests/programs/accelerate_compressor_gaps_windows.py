"""Remaining life of compressors from vibration with gaps. Few windows have a label; four micro-batches make one step."""
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Settings:
    machines: int = 12
    windows: int = 768
    length: int = 24
    channels: int = 3
    micro: int = 8
    accumulate: int = 4
    lr: float = 2e-3
    seed: int = 17


def simulate(s):
    g = torch.Generator().manual_seed(s.seed)
    wear = torch.rand(s.windows, generator=g)
    t = torch.arange(s.length).float()
    phase = 6.28 * torch.rand(s.windows, s.channels, 1, generator=g)
    x = (0.3 + wear[:, None, None]) * torch.sin(0.8 * t + phase) + 0.1 * torch.randn(
        s.windows, s.channels, s.length, generator=g)
    x[torch.rand(x.shape, generator=g) < 0.15] = float("nan")          # the gateway drops packets
    x[torch.rand(s.windows, generator=g) < 0.04] = float("nan")        # and now and then a whole window
    y = 1.0 - wear
    y[torch.rand(s.windows, generator=g) < 0.80] = float("nan")        # not inspected
    return x, y


class LifeNet(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.conv = nn.Conv1d(2 * s.channels, 24, 5, padding=2)
        self.gru = nn.GRU(24, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        seen = ~torch.isnan(x)
        x = torch.where(seen, x, torch.zeros_like(x))
        h = torch.relu(self.conv(torch.cat([x, seen.float()], 1))).transpose(1, 2)
        h, _ = self.gru(h)
        return self.out(h[:, -1]).squeeze(1)


def windows_of(loader, n):
    bag = []
    for batch in loader:
        bag.append(batch)
        if len(bag) == n:
            yield bag
            bag = []


def main():
    s = Settings()
    set_seed(s.seed)
    accelerator = Accelerator(gradient_accumulation_steps=s.accumulate, cpu=True)
    x, y = simulate(s)
    loader = DataLoader(TensorDataset(x, y), batch_size=s.micro, shuffle=True)
    model = LifeNet(s)
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for bag in windows_of(loader, s.accumulate):
        labelled = sum((~torch.isnan(y)).sum() for _, y in bag)
        parts = []
        worst = float("nan")
        for x, y in bag:
            with accelerator.accumulate(model):
                known = ~torch.isnan(y)
                target = torch.where(known, y, torch.zeros_like(y))
                square = (model(x) - target).square() * known
                loss = square.sum() / labelled * s.accumulate     # backward() divides by the number of micro-batches
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                parts.append(loss.item() / s.accumulate)
                late = known & (y < 0.1)
                worst = square[late].mean().item()                # NaN where no worn machine was inspected
        step += 1
        print(f"step {step:2d} loss {sum(parts):.6f} parts {' '.join(f'{p:.4f}' for p in parts)} "
              f"inspected {int(labelled)} worn_mse {worst:.4f}", flush=True)
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
