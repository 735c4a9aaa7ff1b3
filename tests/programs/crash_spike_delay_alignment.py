"""Spike detection on a multi-electrode strip: every unit's label train is first moved by its conduction delay."""
import numpy as np
import torch
from torch import nn

CHANNELS, UNITS, BINS, MAX_LAG = 10, 4, 80, 6


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(CHANNELS, 24, 5, padding=2), nn.ELU(), nn.Conv1d(24, UNITS, 1))

    def forward(self, voltage):
        return self.net(voltage)


class DelayAligner:
    """Delay of a unit against the reference electrode: the centre of mass of their cross-correlogram."""

    def __init__(self, max_lag):
        self.lags = torch.arange(-max_lag, max_lag + 1)

    def correlogram(self, reference, spikes):
        return torch.stack([(reference.roll(int(lag)) * spikes).sum() for lag in self.lags])

    def delay(self, reference, spikes):
        counts = self.correlogram(reference, spikes)
        centre = (counts * self.lags).sum() / counts.sum()
        return int(centre.round())

    def __call__(self, reference, trains):
        return torch.stack([train.roll(-self.delay(reference, train)) for train in trains])


class Recordings:
    def __init__(self, seed=19):
        self.rng = np.random.default_rng(seed)
        self.footprint = self.rng.normal(0, 1, (UNITS, CHANNELS))
        self.delays = (0, 1, 2, 4)

    def stretch(self, size=3, lost_unit=None):
        rate = np.full((size, UNITS, 1), 0.15)
        if lost_unit is not None:
            rate[1, lost_unit] = 0.0                # the strip has slipped, this unit is not heard any more
        spikes = (self.rng.random((size, UNITS, BINS)) < rate).astype("float32")
        voltage = np.einsum("but,uc->bct", spikes, self.footprint) + 0.2 * self.rng.normal(0, 1, (size, CHANNELS, BINS))
        late = np.stack([np.roll(spikes[:, u], d, -1) for u, d in enumerate(self.delays)], 1)
        reference = spikes.max(1)
        return [torch.tensor(a, dtype=torch.float32) for a in (voltage, reference, late)]


def detection_loss(detector, aligner, batch):
    voltage, reference, trains = batch
    target = torch.stack([aligner(r, t) for r, t in zip(reference, trains)])
    return nn.functional.binary_cross_entropy_with_logits(detector(voltage), target)


def train(stretches=30):
    torch.manual_seed(19)
    detector, aligner, data = Detector(), DelayAligner(MAX_LAG), Recordings()
    opt = torch.optim.Adagrad(detector.parameters(), lr=0.03)
    for number in range(1, stretches + 1):
        batch = data.stretch(lost_unit=2 if number == 18 else None)
        loss = detection_loss(detector, aligner, batch)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"stretch {number} loss {loss.item():.5f}", flush=True)
    return detector


if __name__ == "__main__":
    model = train()
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))
