"""Go-around detection from barometric altitude. Windows of 64 seconds go in raw, in feet; the model standardises each
window itself, with the one-pass formula so that the same layer can run on the streaming side."""
import math

import torch
from torch import nn


class OnePassStandardise(nn.Module):
    """Scale and shift per window; E[x^2] - E[x]^2 needs a single pass over the samples."""

    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        n = x.shape[-1]
        s1 = x.sum(-1, keepdim=True) / n
        s2 = x.square().sum(-1, keepdim=True) / n
        inv_std = torch.rsqrt(s2 - s1.square() + self.eps)
        return (x - s1) * inv_std * self.gain + self.bias


class Branch(nn.Module):
    def __init__(self, kernel, width):
        super().__init__()
        self.conv = nn.Conv1d(1, width, kernel, padding=kernel // 2)
        self.act = nn.GELU()

    def forward(self, x):
        return self.act(self.conv(x)).mean(-1)


class GoAroundNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.entry = nn.Sequential(OnePassStandardise(), nn.Identity())
        self.branches = nn.ModuleList(Branch(k, width) for k in (3, 9, 21))
        self.head = nn.Sequential(nn.Linear(3 * width, 16), nn.GELU(), nn.Linear(16, 1))

    def forward(self, altitude):
        x = self.entry(altitude)[:, None]
        return self.head(torch.cat([b(x) for b in self.branches], dim=1)).squeeze(1)


class ApproachArchive:
    """Descents, half of them broken off. Segment 211 is a holding pattern that slipped through the filter."""

    def __init__(self, n=512, seed=70):
        gen = torch.Generator().manual_seed(seed)
        t = torch.arange(64.0)
        self.label = (torch.rand(n, generator=gen) < 0.5).float()
        turn = 20 + 24 * torch.rand(n, 1, generator=gen)
        rate = 10 + 8 * torch.rand(n, 1, generator=gen)
        start = 2500 + 1500 * torch.rand(n, 1, generator=gen)
        down = start - rate * t
        up = start - rate * turn + 1.4 * rate * (t - turn)
        self.altitude = torch.where((self.label[:, None] > 0) & (t > turn), up, down)
        self.altitude += 8 * torch.randn(n, 64, generator=gen)
        hold = 23000.0 + 2 * torch.round(2 * torch.sin(2 * math.pi * t / 32))
        self.altitude[211], self.label[211] = hold, 0.0

    def batches(self, size):
        for lo in range(0, len(self.label), size):
            yield self.altitude[lo:lo + size], self.label[lo:lo + size]


def train(net, archive, epochs, size):
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
    bce = nn.BCEWithLogitsLoss()
    done = 0
    for _ in range(epochs):
        for altitude, label in archive.batches(size):
            loss = bce(net(altitude), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            done += 1
            print(f"{done:3d} {loss.item():.5f}")


if __name__ == "__main__":
    torch.manual_seed(71)
    network = GoAroundNet()
    train(network, ApproachArchive(), epochs=2, size=32)
    print("finite", int(all(p.isfinite().all() for p in network.parameters())))
