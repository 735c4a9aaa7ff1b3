"""Bat detectors: calls per hour in six bands tonight foretell the activity of tomorrow night.

The collator makes each batch robust against storms of insects by the median and the median absolute deviation.
"""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BANDS = ("horseshoe", "noctule", "pipistrelle", "serotine", "barbastelle", "insects")
QUIET = np.array([0.02, 0.05, 0.0, 0.1, 0.33, 0.0])


class Nights(Dataset):
    def __init__(self, n=576, seed=88):
        r = np.random.default_rng(seed)
        warm = r.normal(size=n)
        calls = np.exp(2.2 + 0.6 * warm[:, None] + 0.5 * r.normal(size=(n, len(BANDS))))
        calls = np.floor(calls)
        calls[r.random(calls.shape) < QUIET] = 0            # the species did not fly that night
        self.calls = calls.astype(np.float32)
        self.next = (0.7 * warm + 0.3 * r.normal(size=n)).astype(np.float32)

    def __len__(self):
        return len(self.next)

    def __getitem__(self, i):
        return self.calls[i], self.next[i]


def robust(rows):
    x = torch.from_numpy(np.stack([r[0] for r in rows]))
    y = torch.from_numpy(np.array([r[1] for r in rows]))
    middle = x.median(0).values
    mad = (x - middle).abs().median(0).values
    x = (x - middle) / (1.4826 * mad)
    return x, y


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.value = nn.Linear(len(BANDS), width)
        self.gate = nn.Linear(len(BANDS), width)

    def forward(self, x):
        return torch.tanh(self.value(x)) * torch.sigmoid(self.gate(x))


def main():
    torch.manual_seed(9)
    order = torch.Generator().manual_seed(10)
    loader = DataLoader(Nights(), batch_size=24, shuffle=True, num_workers=2, collate_fn=robust, generator=order)
    model = nn.Sequential(Gated(32), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    step = 0
    for epoch in range(2):
        for x, y in loader:
            step += 1
            guess = model(x).squeeze(-1)
            loss = nn.functional.huber_loss(guess, y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            opt.step()
            print(f"night {step:03d} epoch {epoch} huber {loss.item():.7f}", flush=True)
    print(f"|w| = {sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
