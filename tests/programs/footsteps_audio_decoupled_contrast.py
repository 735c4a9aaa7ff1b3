"""Who is walking upstairs?  Self-supervised embeddings of footstep recordings: two crops of one walk are a pair.
The positive is left out of the denominator (decoupled contrastive learning)."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

WARM, COOLING = 0.12, 0.955


def record_walks(walkers=48, samples=256, seed=8):
    g = torch.Generator().manual_seed(seed)
    time = torch.arange(samples) / samples
    cadence = 6 + 10 * torch.rand(walkers, 1, generator=g)
    pitch = 30 + 70 * torch.rand(walkers, 1, generator=g)
    phase = torch.rand(walkers, 1, generator=g)
    knock = torch.exp(-12 * ((time * cadence + phase) % 1.0))
    return knock * torch.sin(2 * torch.pi * pitch * time) + 0.05 * torch.randn(walkers, samples, generator=g)


class StepEncoder(nn.Module):
    def __init__(self, bands=33, dim=32):
        super().__init__()
        self.project = nn.Sequential(nn.Linear(bands, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, dim))

    def forward(self, wave):
        spectrum = torch.stft(wave, 64, hop_length=32, window=torch.hann_window(64), return_complex=True).abs()
        return F.normalize(self.project(spectrum.mean(-1).add(1e-3).log()), dim=-1)


def decoupled(first, second, temperature):
    similar = torch.exp(first @ second.t() / temperature)
    positive = similar.diagonal()
    others = similar.sum(1) - positive
    return (others.log() - positive.log()).mean()


def crops(wave, g):
    a, b = torch.randint(0, 64, (2,), generator=g).tolist()
    return wave[:, a:a + 192], wave[:, b:b + 192]


def main():
    torch.manual_seed(5)
    accelerator = Accelerator(cpu=True)
    encoder = StepEncoder()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=3e-3, weight_decay=1e-4)
    loader = DataLoader(TensorDataset(record_walks()), batch_size=48)
    encoder, optimizer, loader = accelerator.prepare(encoder, optimizer, loader)
    g = torch.Generator().manual_seed(99)
    for epoch in range(1, 37):
        for (wave,) in loader:
            first, second = crops(wave, g)
            loss = decoupled(encoder(first), encoder(second), WARM * COOLING ** epoch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.print(f"pass {epoch:2d} contrast {loss.item():+.4f}")
    norm = sum(p.detach().abs().sum() for p in encoder.parameters())
    accelerator.print(f"absolute weights {norm.item():.3f}")


main()
