"""Water levels at canal lock gates, 24 readings ahead. Reversible instance normalisation around a small MLP mixer,
gaps in the record (NaN) are masked out of the statistics, the input and the loss. accelerate accumulates two batches."""
import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAST, AHEAD = 72, 24


class Levels(Dataset):
    def __init__(self, gates=7, hours=1500, seed=1):
        rng = np.random.default_rng(seed)
        t = np.arange(hours)
        rows = []
        for g in range(gates):
            level = 3 * g + np.sin(2 * np.pi * t / 12.4 + g) + 0.3 * rng.normal(size=hours).cumsum() / 10
            level += 0.05 * rng.normal(size=hours)
            gap = rng.random(hours) < 0.04
            for start in rng.integers(0, hours - 150, size=3):
                gap[start:start + 150] = True                       # gauge taken out, longer than a window
            level[gap] = np.nan
            rows.append(level)
        rows[3][600:900] = 9.25                                     # lock drained: a flat line
        self.rows = torch.tensor(np.stack(rows), dtype=torch.float32)
        self.places = [(g, s) for g in range(gates) for s in range(0, hours - PAST - AHEAD, 8)]

    def __len__(self):
        return len(self.places)

    def __getitem__(self, i):
        g, s = self.places[i]
        return self.rows[g, s:s + PAST], self.rows[g, s + PAST:s + PAST + AHEAD]


class MaskedRevIN(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def normalise(self, x):
        # nanmean of a window without any reading is nan; such windows start from 0 and 1
        known = ~x.isnan()
        self.mean = x.nanmean(1, keepdim=True).nan_to_num(0.0)
        centred = torch.where(known, x - self.mean, 0.0)
        variance = centred.square().sum(1, keepdim=True) / known.sum(1, keepdim=True).clamp(min=1)
        self.std = (variance + self.eps).sqrt()
        return centred / self.std * self.gain + self.bias * known, known

    def restore(self, y):
        return (y - self.bias) / self.gain * self.std + self.mean


class Forecaster(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.revin = MaskedRevIN()
        self.mix = nn.Sequential(nn.Linear(2 * PAST, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.out = nn.Linear(width, AHEAD)

    def forward(self, past):
        x, known = self.revin.normalise(past)
        return self.revin.restore(self.out(self.mix(torch.cat([x, known.float()], 1))))


def masked_huber(predicted, target):
    known = ~target.isnan()
    error = nn.functional.huber_loss(predicted, torch.where(known, target, predicted.detach()), reduction="none", delta=0.5)
    return (error * known).sum() / known.sum().clamp(min=1)


def mase(predicted, target, past):
    naive = (past[:, 1:] - past[:, :-1]).abs().nanmean(1)            # 0 on the flat line, nan where nothing is known
    return ((predicted - target).abs().nanmean(1) / naive).mean()


def main():
    torch.manual_seed(2)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = DataLoader(Levels(), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(3), drop_last=True)
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    steps, running = 0, 0.0
    for past, future in loader:
        with accelerator.accumulate(model):
            predicted = model(past)
            loss = masked_huber(predicted, future)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        running += loss.item() / 2
        if accelerator.sync_gradients:
            steps += 1
            with torch.no_grad():
                score = mase(predicted, future, past)
            accelerator.print(f"step {steps} loss {running:.6f} mase {score.item():.4f}", flush=True)
            running = 0.0
            if steps == 36:
                break
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()
