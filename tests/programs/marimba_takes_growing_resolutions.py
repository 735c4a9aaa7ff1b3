"""Denoise short marimba takes.  Log-mel loss at several STFT resolutions, finer ones in time come in later."""
import math
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SR = 8000
LENGTH = 2048
N_MELS = 64
STAGES = [(1, 1024), (9, 512), (23, 128)]       # from this step on, also this FFT size


def hz_to_mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


def mel_bank(n_fft, n_mels=N_MELS, sr=SR):
    """Triangular filters with unit area, as (n_mels, n_fft // 2 + 1)."""
    mels = torch.linspace(hz_to_mel(30.0), hz_to_mel(sr / 2), n_mels + 2)
    hz = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    freqs = torch.linspace(0, sr / 2, n_fft // 2 + 1)
    up = (freqs[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - freqs[None]) / (hz[2:] - hz[1:-1])[:, None]
    tri = torch.clamp(torch.minimum(up, down), min=0.0)
    return tri / tri.sum(dim=1, keepdim=True)


class LogMelDistance(nn.Module):
    def __init__(self, n_fft):
        super().__init__()
        self.n_fft = n_fft
        self.register_buffer("bank", mel_bank(n_fft))
        self.register_buffer("window", torch.hann_window(n_fft))

    def logmel(self, x):
        spec = torch.stft(x, self.n_fft, hop_length=self.n_fft // 4, window=self.window, return_complex=True)
        power = spec.real.square() + spec.imag.square()
        return torch.log(torch.matmul(self.bank, power) + 1e-3)

    def forward(self, y, target):
        return (self.logmel(y) - self.logmel(target)).abs().mean()


class Denoiser(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.inp = nn.Conv1d(1, ch, 9, padding=4)
        self.mid = nn.ModuleList([nn.Conv1d(ch, ch, 5, padding=2 * d, dilation=d) for d in (1, 2, 4)])
        self.out = nn.Conv1d(ch, 1, 9, padding=4)

    def forward(self, x):
        h = torch.tanh(self.inp(x[:, None]))
        for conv in self.mid:
            h = h + torch.tanh(conv(h))
        return x + self.out(h)[:, 0]


def takes(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(LENGTH) / SR
    f0 = 110.0 * 2.0 ** (torch.randint(0, 36, (n, 1), generator=g) / 12.0)
    decay = 6.0 + 10.0 * torch.rand(n, 1, generator=g)
    clean = torch.exp(-decay * t) * (torch.sin(2 * math.pi * f0 * t) + 0.4 * torch.sin(2 * math.pi * 3.93 * f0 * t))
    noisy = clean + 0.05 * torch.randn(n, LENGTH, generator=g)
    return TensorDataset(noisy, clean)


def main():
    torch.manual_seed(77)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = Denoiser()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    loader = DataLoader(takes(304, 3), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))
    net, opt, loader = accelerator.prepare(net, opt, loader)
    losses, step, running = {}, 1, 0.0
    for noisy, clean in loader:
        for start, n_fft in STAGES:
            if step >= start and n_fft not in losses:
                losses[n_fft] = LogMelDistance(n_fft)
        with accelerator.accumulate(net):
            y = net(noisy)
            loss = 0.1 * (y - clean).abs().mean()
            for distance in losses.values():
                loss = loss + distance(y, clean) / len(losses)
            accelerator.backward(loss)
            running += loss.item() / 2
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        if accelerator.sync_gradients:
            accelerator.print(f"step {step} resolutions {sorted(losses)} loss {running:.7f}", flush=True)
            step, running = step + 1, 0.0
    total = sum(p.detach().abs().sum().item() for p in net.parameters())
    accelerator.print(f"{total:.6f}", flush=True)


if __name__ == "__main__":
    main()
