"""Counting cells with learnable grey-scale morphology (dilation / erosion layers) in place of convolutions."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    size: int = 24
    n_images: int = 160
    batch_size: int = 16
    epochs: int = 4
    lr: float = 4e-3
    seed: int = 11


class SyntheticCells(Dataset):
    """Gaussian blobs on a dark background, with the number of blobs as target."""

    def __init__(self, cfg):
        g = torch.Generator().manual_seed(cfg.seed)
        grid = torch.stack(torch.meshgrid(torch.arange(cfg.size), torch.arange(cfg.size), indexing="ij")).float()
        self.images, self.counts = [], []
        for _ in range(cfg.n_images):
            n = int(torch.randint(0, 7, (1,), generator=g))
            image = 0.05 * torch.rand(cfg.size, cfg.size, generator=g)
            for _ in range(n):
                centre = torch.rand(2, generator=g) * cfg.size
                image += torch.exp(-((grid - centre[:, None, None]) ** 2).sum(0) / 4.0)
            self.images.append(image[None])
            self.counts.append(float(n))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], torch.tensor(self.counts[i])


class Morphology(nn.Module):
    """max-plus (dilation) or min-plus (erosion) over a window; outside the image is the neutral element."""

    def __init__(self, channels, k=3, mode="dilate"):
        super().__init__()
        self.k, self.mode = k, mode
        self.element = nn.Parameter(0.02 * torch.randn(channels, k * k))

    def forward(self, x):
        neutral = float("-inf") if self.mode == "dilate" else float("inf")
        n, c, h, w = x.shape
        padded = F.pad(x, [self.k // 2] * 4, value=neutral)
        windows = F.unfold(padded, self.k).view(n, c, self.k * self.k, h, w)
        element = self.element[None, :, :, None, None]
        if self.mode == "dilate":
            return (windows + element).amax(2)
        return (windows - element).amin(2)


class CountingNet(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.lift = nn.Conv2d(1, width, 1)
        self.opening = nn.Sequential(Morphology(width, mode="erode"), Morphology(width, mode="dilate"))
        self.mix = nn.Conv2d(width, width, 3, padding=1)
        self.dilate = Morphology(width, mode="dilate")
        self.head = nn.Linear(width, 1)

    def forward(self, image):
        x = self.lift(image)
        top_hat = x - self.opening(x)
        x = torch.tanh(self.mix(top_hat))
        peaks = torch.sigmoid(8 * (x - self.dilate(x) + 0.1))
        return self.head(peaks.mean((2, 3)) * 4).squeeze(1)


def train(cfg):
    torch.manual_seed(cfg.seed)
    loader = DataLoader(SyntheticCells(cfg), cfg.batch_size, shuffle=True)
    model = CountingNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    best = float("inf")
    step = 0
    for epoch in range(cfg.epochs):
        for images, counts in loader:
            step += 1
            log_rate = model(images)
            loss = F.poisson_nll_loss(log_rate, counts, log_input=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            best = min(best, loss.item())
            print(f"epoch {epoch} step {step} poisson {loss.item():.5f} best {best:.5f}")
    return model


if __name__ == "__main__":
    net = train(Config())
    print("finite", int(all(p.isfinite().all() for p in net.parameters())))
