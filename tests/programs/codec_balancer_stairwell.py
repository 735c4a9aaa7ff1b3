"""Small neural codec for stairwell intercom recordings. Losses are balanced on the decoder output, as EnCodec does."""
import math
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

SR, CLIP, BATCH, STEPS = 4000, 1024, 4, 25


class Quantizer(nn.Module):
    def __init__(self, bins=16, dim=8):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(bins, dim) * 0.3)

    def forward(self, z):
        flat = z.transpose(1, 2)
        d = (flat.unsqueeze(2) - self.codes).square().sum(-1)
        q = self.codes[d.argmin(-1)].transpose(1, 2)
        commit = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return z + (q - z).detach(), commit


class Codec(nn.Module):
    def __init__(self, ch=12, dim=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(1, ch, 8, 4, 2), nn.ELU(), nn.Conv1d(ch, dim, 8, 4, 2))
        self.vq = Quantizer(dim=dim)
        self.dec = nn.Sequential(nn.ConvTranspose1d(dim, ch, 8, 4, 2), nn.ELU(), nn.ConvTranspose1d(ch, 1, 8, 4, 2))

    def forward(self, wav):
        volume = wav.square().mean((1, 2), keepdim=True).sqrt()
        z, commit = self.vq(self.enc(wav / (volume + 1e-6)))
        return self.dec(z) * volume, commit


class Balancer:
    """gradient of each loss w.r.t. the output is brought to a share of unit length, clip by clip"""

    def __init__(self, weights):
        self.weights = weights
        total = sum(weights.values())
        self.share = {k: w / total for k, w in weights.items()}
        self.seen = defaultdict(float)

    def backward(self, losses, out):
        mixed = torch.zeros_like(out)
        for name, loss in losses.items():
            grad, = torch.autograd.grad(loss, out, retain_graph=True)
            length = grad.flatten(1).norm(dim=1).view(-1, 1, 1)
            mixed = mixed + self.share[name] * (grad / length)
            self.seen[name] = 0.9 * self.seen[name] + 0.1 * loss.item()
        out.backward(mixed / len(out), retain_graph=True)


def spectral(x, y):
    total = 0.0
    for n in (64, 128, 256):
        w = torch.hann_window(n)
        X = torch.view_as_real(torch.stft(x.squeeze(1), n, n // 4, window=w, return_complex=True))
        Y = torch.view_as_real(torch.stft(y.squeeze(1), n, n // 4, window=w, return_complex=True))
        total = total + (X - Y).square().mean() / n
    return total


def record(i, g):
    if i in (38, 73):                       # door station offline: the recorder writes digital silence
        return torch.zeros(1, CLIP)
    t = torch.arange(CLIP) / SR
    f = 150 + 400 * torch.rand(3, generator=g)
    x = sum(torch.sin(2 * math.pi * k * t + 6 * torch.rand((), generator=g)) for k in f) / 3
    echo = torch.zeros_like(x)
    echo[200:] = 0.4 * x[:-200]
    return ((x + echo) * (0.1 + 0.5 * torch.rand((), generator=g)))[None]


def main():
    torch.manual_seed(101)
    g = torch.Generator().manual_seed(102)
    clips = torch.stack([record(i, g) for i in range(BATCH * STEPS)])
    codec = Codec()
    opt = torch.optim.Adam(codec.parameters(), lr=1e-3, betas=(0.5, 0.9))
    balancer = Balancer({"time": 0.1, "freq": 1.0})
    for step, wav in enumerate(clips.split(BATCH), 1):
        out, commit = codec(wav)
        losses = {"time": F.l1_loss(out, wav), "freq": spectral(out, wav)}
        opt.zero_grad()
        balancer.backward(losses, out)
        (4.0 * commit).backward()
        opt.step()
        print(f"step={step} l1={losses['time'].item():.5f} stft={losses['freq'].item():.5f} commit={commit.item():.4f}", flush=True)
    print("final %.4f" % math.sqrt(sum(p.detach().square().sum().item() for p in codec.parameters())))


if __name__ == "__main__":
    main()
