"""Vocoder fine-tuning with a multi-resolution STFT loss (Parallel WaveGAN), accelerate loop."""
import logging

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

logging.disable(logging.WARNING)


class Clips(Dataset):
    """1024-sample excerpts; the corpus was trimmed by hand, not always well"""

    def __init__(self, n=72):
        g = torch.Generator().manual_seed(77)
        t = torch.arange(1024) / 8000
        f0 = 100 + 300 * torch.rand(n, 1, generator=g)
        self.wav = 0.4 * torch.sin(2 * torch.pi * f0 * t) + 0.02 * torch.randn(n, 1024, generator=g)
        self.wav[30] = 0.0
        frames = self.wav.unfold(1, 64, 64)
        self.cond = torch.cat([frames.mean(-1, keepdim=True), frames.abs().amax(-1, keepdim=True), frames[..., :6]], -1)

    def __len__(self):
        return len(self.wav)

    def __getitem__(self, i):
        return self.cond[i], self.wav[i]


class MultiResolutionSTFT(nn.Module):
    def __init__(self, sizes=(64, 128, 256)):
        super().__init__()
        self.sizes = sizes
        for n in sizes:
            self.register_buffer(f"window_{n}", torch.hann_window(n), persistent=False)

    def magnitude(self, x, n):
        spec = torch.stft(x, n, n // 4, window=getattr(self, f"window_{n}"), return_complex=True)
        return torch.sqrt(spec.real ** 2 + spec.imag ** 2)

    def forward(self, fake, real):
        total = 0.0
        for n in self.sizes:
            m_fake, m_real = self.magnitude(fake, n), self.magnitude(real, n)
            log_real = torch.log(m_real)
            total = total + (torch.log(m_fake) - log_real).abs().mean()
            convergence = torch.linalg.norm(m_real - m_fake, dim=(1, 2)) / torch.linalg.norm(m_real, dim=(1, 2))
            total = total + convergence.mean()
        return total / len(self.sizes)


def build():
    return nn.Sequential(nn.Linear(8, 96), nn.LeakyReLU(0.2), nn.Linear(96, 64), nn.Tanh(), nn.Flatten(1))


def run():
    set_seed(3)
    accelerator = Accelerator(cpu=True)
    generator = build()
    optimizer = torch.optim.RAdam(generator.parameters(), lr=3e-3)
    loader = DataLoader(Clips(), batch_size=4, shuffle=False)
    criterion = MultiResolutionSTFT()
    generator, optimizer, loader = accelerator.prepare(generator, optimizer, loader)
    for step, (cond, wav) in enumerate(loader, start=1):
        loss = criterion(generator(cond), wav)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(generator.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step:2d} | stft {loss.item():.5f}")
    print("norm", sum(p.detach().norm().item() for p in accelerator.unwrap_model(generator).parameters()))


if __name__ == "__main__":
    run()
