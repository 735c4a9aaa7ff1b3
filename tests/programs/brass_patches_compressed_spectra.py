"""Resynthesis of a brass section: one differentiable additive patch, learned note by note
from recordings with a multi-resolution loss on compressed spectra."""
import math
import torch

SR, LENGTH, PARTIALS = 4000, 1024, 8
WINDOWS = {n: torch.hann_window(n) for n in (64, 128, 256)}
t = torch.arange(LENGTH) / SR


def midi_to_hz(m):
    return 440.0 * 2 ** ((m - 69) / 12)


class Patch(torch.nn.Module):
    def __init__(self, levels, attack, brightness):
        super().__init__()
        self.levels = torch.nn.Parameter(torch.as_tensor(levels, dtype=torch.float32))
        self.attack = torch.nn.Parameter(torch.tensor(float(attack)))
        self.brightness = torch.nn.Parameter(torch.tensor(float(brightness)))

    def forward(self, pitch, velocity, held):
        f0 = midi_to_hz(pitch)
        k = torch.arange(1, PARTIALS + 1)
        audible = (k * f0 < SR / 2).float()
        amps = torch.softmax(self.levels - self.brightness.exp() * (1 - velocity) * k / PARTIALS, 0) * audible
        env = 1 - torch.exp(-t * self.attack.exp())
        gate = (torch.arange(LENGTH) < held).float()
        phase = 2 * math.pi * f0 * t[None] * k[:, None]
        return velocity * gate * env * (amps[:, None] * torch.sin(phase)).sum(0)


def compressed(audio, n):
    spec = torch.stft(audio, n, hop_length=n // 4, window=WINDOWS[n], return_complex=True)
    return spec.abs() ** 0.4


def spectral_loss(a, b):
    return sum((compressed(a, n) - compressed(b, n)).pow(2).mean() for n in WINDOWS)


def score():
    """Pitch, velocity and length in samples, as the conductor has them."""
    g = torch.Generator().manual_seed(31)
    for bar in range(36):
        pitch = 50 + int(torch.randint(0, 20, (1,), generator=g))
        velocity = 0.4 + 0.6 * float(torch.rand(1, generator=g))
        yield bar, pitch, velocity, LENGTH if bar != 17 else 420


def main():
    torch.manual_seed(1)
    noise = torch.Generator().manual_seed(2)
    player = Patch([1.0, 0.8, 0.9, 0.4, 0.1, -0.3, -0.9, -1.5], 4.0, 0.3).requires_grad_(False)
    patch = Patch([0.0] * PARTIALS, 2.5, -0.5)
    opt = torch.optim.RMSprop(patch.parameters(), lr=0.03)
    for bar, pitch, velocity, held in score():
        recording = player(pitch, velocity, held) + 1e-3 * torch.randn(LENGTH, generator=noise)

        def closure():
            opt.zero_grad()
            loss = spectral_loss(patch(pitch, velocity, held), recording)
            loss.backward()
            return loss

        loss = opt.step(closure)
        print(f"bar {bar + 1:02d} pitch {pitch} loss {loss.item():.5f} attack {patch.attack.item():.3f}")
    print("patch, sum of magnitudes", sum(p.abs().sum().item() for p in patch.parameters()))


if __name__ == "__main__":
    main()
