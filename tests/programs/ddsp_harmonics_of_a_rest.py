"""Toy DDSP: a controller turns (pitch, loudness) into harmonic amplitudes, an additive
oscillator bank renders the note, and the log spectrum is compared with the recording."""
import math

import torch
from torch import nn
from torch.nn import functional as F

SR = 4000
N_HARM = 12
FRAME = 512


class HarmonicHead(nn.Module):
    """Unit-energy harmonic distribution + overall level (loudness enters in decibel)."""

    def __init__(self, width: int, n_harm: int):
        super().__init__()
        self.proj = nn.Linear(width, n_harm)
        self.db_slope = nn.Parameter(torch.tensor(0.28))

    def forward(self, h, loud_db):
        amps = F.softplus(self.proj(h) + self.db_slope * loud_db[:, None])
        energy = amps.pow(2).sum(-1, keepdim=True)
        shape = amps * energy.rsqrt()
        level = 10 ** (loud_db / 20)
        return shape, level


class Controller(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.pitch = nn.Sequential(nn.Linear(1, width), nn.LayerNorm(width), nn.LeakyReLU(0.2))
        self.gru = nn.GRUCell(width, width)
        self.harmonics = HarmonicHead(width, N_HARM)

    def forward(self, midi, loud_db):
        h = self.gru(self.pitch((midi[:, None] - 60.0) / 12.0))
        return self.harmonics(h, loud_db)


def render(midi, shape, level):
    f0 = 440.0 * 2.0 ** ((midi - 69.0) / 12.0)
    k = torch.arange(1, N_HARM + 1)
    freqs = f0[:, None] * k
    audible = (freqs < SR / 2).float()
    n = torch.arange(FRAME) / SR
    waves = torch.sin(2 * math.pi * freqs[:, :, None] * n)
    return level[:, None] * ((shape * audible)[:, :, None] * waves).sum(1)


def spectrum(x):
    mag = torch.fft.rfft(x * torch.hann_window(FRAME)).abs()
    return torch.log(mag + 1e-3)


def make_score(gen, n_notes=128):
    midi = torch.randint(48, 72, (n_notes,), generator=gen).float()
    loud = -30.0 + 20.0 * torch.rand(n_notes, generator=gen)
    loud[83] = -120.0                        # bar 21: a rest, at the floor of the loudness meter
    true_shape = 1.0 / torch.arange(1, N_HARM + 1).float() ** (0.7 + midi[:, None] / 80.0)
    true_shape = true_shape / true_shape.norm(dim=-1, keepdim=True)
    return midi, loud, true_shape


def main():
    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(5)
    midi, loud, true_shape = make_score(gen)
    with torch.no_grad():
        recording = render(midi, true_shape, 10 ** (loud / 20))
    net = Controller()
    opt = torch.optim.NAdam(net.parameters(), lr=4e-3)

    step = 0
    for epoch in range(2):
        for i in range(0, len(midi), 8):
            step += 1
            sl = slice(i, i + 8)
            shape, level = net(midi[sl], loud[sl])
            audio = render(midi[sl], shape, level)
            loss = F.l1_loss(spectrum(audio), spectrum(recording[sl]))
            loss = loss + 0.1 * F.mse_loss(shape.cumsum(-1), true_shape[sl].cumsum(-1))
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"[{step:02d}] spectral {loss.item():.8f}")
    print("final", sum(p.detach().abs().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
