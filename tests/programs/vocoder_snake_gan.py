import torch
from torch import nn
import torch.nn.functional as F


class Snake(nn.Module):
    """Periodic activation for audio, one frequency per channel (non-negative)."""

    def __init__(self, channels):
        super().__init__()
        self.freq = nn.Parameter(torch.linspace(0.05, 1.5, channels)[:, None])

    def forward(self, x):
        ripple = torch.sin(self.freq * x) ** 2
        return x + ripple / self.freq

    @torch.no_grad()
    def tame(self):
        self.freq.clamp_(min=0.0)


class Generator(nn.Module):
    def __init__(self, mels=5, width=8):
        super().__init__()
        self.pre = nn.Conv1d(mels, width, 3, padding=1)
        self.up = nn.ModuleList([nn.ConvTranspose1d(width, width, 4, 2, 1) for _ in range(3)])
        self.act = nn.ModuleList([Snake(width) for _ in range(3)])
        self.post = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, mel):
        h = self.pre(mel)
        for act, up in zip(self.act, self.up):
            h = up(act(h))
        return torch.tanh(self.post(h))


def make_discriminator():
    return nn.Sequential(
        nn.Conv1d(1, 8, 9, stride=2, padding=4), nn.LeakyReLU(0.1),
        nn.Conv1d(8, 12, 9, stride=2, padding=4), nn.LeakyReLU(0.1),
        nn.Conv1d(12, 1, 5, padding=2))


def voices(batch, frames=16, hop=8, mels=5):
    """Hummed notes; the 'mel' frames are band energies of the note."""
    pitch = 0.05 + 0.15 * torch.rand(batch, 1)
    clock = torch.arange(frames * hop).float()
    loud = 0.3 + 0.5 * torch.rand(batch, 1)
    wave = loud * torch.sin(2 * torch.pi * pitch * clock + 6.28 * torch.rand(batch, 1))
    bands = torch.linspace(0.05, 0.2, mels)
    mel = loud[:, :, None] * torch.exp(-((pitch - bands) / 0.04) ** 2)[:, :, None]
    return mel.expand(-1, -1, frames), wave[:, None]


def fit(steps=40):
    torch.manual_seed(9)
    gen, disc = Generator(), make_discriminator()
    g_opt = torch.optim.Adam(gen.parameters(), lr=8e-3, betas=(0.8, 0.99))
    d_opt = torch.optim.Adam(disc.parameters(), lr=4e-3, betas=(0.8, 0.99))
    for i in range(steps):
        mel, wave = voices(6)
        fake = gen(mel)
        d_loss = (disc(wave) - 1).square().mean() + disc(fake.detach()).square().mean()
        d_opt.zero_grad()
        d_loss.backward()
        d_opt.step()

        window = torch.hann_window(32)
        spec = [torch.stft(w.squeeze(1), 32, 8, window=window, return_complex=True) for w in (fake, wave)]
        power = [torch.log1p(s.real ** 2 + s.imag ** 2) for s in spec]
        g_loss = (disc(fake) - 1).square().mean() + 4 * F.l1_loss(*power)
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
        for act in gen.act:
            act.tame()
        print(f"[{i + 1:02d}] disc {d_loss.item():.4f} gen {g_loss.item():.4f}")
    return gen, disc


if __name__ == "__main__":
    nets = fit()
    print("checksum of both nets: %.6f" % sum(p.abs().sum().item() for n in nets for p in n.parameters()))
