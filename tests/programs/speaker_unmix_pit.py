"""Two-speaker separation, SI-SNR with permutation invariant training; float16 autocast and a gradient scaler."""
import itertools
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Mixtures(Dataset):
    def __init__(self, n=96, length=512, seed=2):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(length) / 8000
        f0 = 100 + 80 * torch.rand(n, 1, generator=g)
        f1 = 260 + 150 * torch.rand(n, 1, generator=g)
        phase = 2 * math.pi * torch.rand(n, 2, generator=g)
        low = torch.sin(2 * math.pi * f0 * t + phase[:, :1]) + 0.4 * torch.sin(4 * math.pi * f0 * t)
        high = torch.sin(2 * math.pi * f1 * t + phase[:, 1:]) + 0.3 * torch.sin(6 * math.pi * f1 * t)
        self.sources = torch.stack([low, high], 1) * (0.5 + torch.rand(n, 2, 1, generator=g))

    def __len__(self):
        return len(self.sources)

    def __getitem__(self, i):
        return self.sources[i].sum(0), self.sources[i]


class TinySeparator(nn.Module):
    def __init__(self, frame=32, bases=48, hidden=64):
        super().__init__()
        self.frame = frame
        self.encoder = nn.Linear(frame, bases, bias=False)
        self.context = nn.Sequential(nn.Linear(3 * bases, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.masks = nn.Linear(hidden, 2 * bases)
        self.decoder = nn.Linear(bases, frame, bias=False)

    def forward(self, mixture):
        frames = mixture.unflatten(-1, (-1, self.frame))
        code = torch.relu(self.encoder(frames))
        around = torch.cat([code.roll(1, 1), code, code.roll(-1, 1)], -1)
        masks = torch.sigmoid(self.masks(self.context(around))).unflatten(-1, (2, -1))
        waves = self.decoder(masks * code[:, :, None])
        return waves.transpose(1, 2).flatten(2)


def si_snr(estimate, target, eps=1e-6):
    estimate = estimate - estimate.mean(-1, keepdim=True)
    target = target - target.mean(-1, keepdim=True)
    scale = (estimate * target).sum(-1, keepdim=True) / (target.pow(2).sum(-1, keepdim=True) + eps)
    projection = scale * target
    noise = estimate - projection
    return 10 * torch.log10((projection.pow(2).sum(-1) + eps) / (noise.pow(2).sum(-1) + eps))


def pit_loss(estimates, sources):
    scores = []
    for order in itertools.permutations(range(sources.shape[1])):
        scores.append(si_snr(estimates[:, list(order)], sources).mean(1))
    return -torch.stack(scores, 1).amax(1).mean()


class Trainer:
    def __init__(self, model, loader, lr=3e-3):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 16, growth_interval=30)
        self.iteration = 0

    def train_step(self, mixture, sources):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            estimates = self.model(mixture)
        loss = pit_loss(estimates.float(), sources)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()

    def fit(self, epochs):
        for epoch in range(epochs):
            for mixture, sources in self.loader:
                self.iteration += 1
                loss = self.train_step(mixture, sources)
                print(f"epoch {epoch} it {self.iteration} si-snr {-loss:.4f} dB scale {self.scaler.get_scale():.0f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    separator = TinySeparator()
    Trainer(separator, DataLoader(Mixtures(), 12, shuffle=True)).fit(5)
    print("finite", int(all(p.isfinite().all() for p in separator.parameters())))
