"""Pulsar or interference? Folded profiles are read by a thread ahead of the training loop.

One .npz per night in the spool directory, as the telescope's exporter leaves them.
"""

import queue
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch
from torch import nn

PHASE_BINS, NIGHTS, EPOCHS = 48, 18, 2
DONE = object()


def export_nights(spool: Path, seed=1967):
    rng = np.random.default_rng(seed)
    phase = np.linspace(0, 1, PHASE_BINS, endpoint=False)
    for night in range(NIGHTS):
        label = rng.integers(0, 2, 20)
        centre, width = rng.uniform(0.2, 0.8, (20, 1)), rng.uniform(0.03, 0.09, (20, 1))
        profile = label[:, None] * np.exp(-0.5 * ((phase - centre) / width) ** 2) + 0.4 * rng.standard_normal(
            (20, PHASE_BINS)
        )
        if night == 12:
            profile = profile[:, :-3]  # folded by the old back-end, which drops the last channels
        np.savez(spool / f"night{night:03d}.npz", profile=profile.astype("f4"), label=label)


class Feeder(threading.Thread):
    def __init__(self, spool, ahead=2):
        super().__init__(daemon=True, name="feeder")
        self.files = sorted(spool.glob("night*.npz"))
        self.line = queue.Queue(maxsize=ahead)

    def run(self):
        for _ in range(EPOCHS):
            for f in self.files:
                with np.load(f) as z:
                    profile, label = z["profile"], z["label"]
                profile = profile - profile.mean(1, keepdims=True)
                self.line.put((f.stem, torch.from_numpy(profile), torch.from_numpy(label).float()))
        self.line.put(DONE)

    def __iter__(self):
        self.start()
        return iter(self.line.get, DONE)


class Sifter(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(PHASE_BINS, 32)
        self.block = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU())
        self.verdict = nn.Linear(32, 1)

    def forward(self, profile):
        h = self.stem(profile)
        h = h + self.block(h)
        return self.verdict(h).squeeze(-1)


def main():
    torch.manual_seed(1967)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as tmp:
        export_nights(Path(tmp))
        model = Sifter()
        opt = torch.optim.NAdam(model.parameters(), lr=4e-3)
        for step, (name, profile, label) in enumerate(Feeder(Path(tmp)), start=1):
            loss = nn.functional.binary_cross_entropy_with_logits(model(profile), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"{step:2d} {name} loss {loss.item():.6f}", flush=True)
    print("sum", sum(p.detach().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
