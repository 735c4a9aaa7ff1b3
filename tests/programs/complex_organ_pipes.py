"""Complex-valued filter bank for voicing organ pipes: find the transfer function of a pipe from wind noise to tone.

Loss: distance of log spectra (dB) over the bins that carry energy, plus the complex residual, summed (not averaged).
"""
import torch
from torch import nn

torch.manual_seed(440)
N, BINS = 128, 65


class ComplexLinear(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(b, a, dtype=torch.cfloat) / a ** 0.5)
        self.bias = nn.Parameter(torch.zeros(b, dtype=torch.cfloat))

    def forward(self, z):
        return z @ self.weight.mT + self.bias


def mod_relu(z, bias):
    """|z| is held off zero: a silent bin has no phase."""
    r = z.abs().clamp_min(1e-6)
    return torch.relu(r + bias) * z / r


class PipeFilter(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.enter = ComplexLinear(BINS, width)
        self.threshold = nn.Parameter(torch.full((width,), -0.05))
        self.leave = ComplexLinear(width, BINS)
        self.direct = nn.Parameter(torch.ones(BINS, dtype=torch.cfloat))

    def forward(self, spectrum):
        h = mod_relu(self.enter(spectrum), self.threshold)
        return self.direct * spectrum + 0.1 * self.leave(h)


def wind(n, g):
    x = torch.randn(n, N, generator=g) * 300.0     # raw counts of the sound card
    x[0] = 0.0                                      # each batch has the bellows-off reference take
    return x


def speak(x):
    """The pipe: three resonances and nothing above bin 48."""
    f = torch.fft.rfft(x)
    k = torch.arange(BINS).float()
    h = sum(a / (1 + ((k - c) / 2.0) ** 2) for a, c in ((4.0, 8.0), (2.0, 16.0), (1.0, 24.0)))
    h = torch.where(k > 48, torch.zeros(()), h)
    return f * h * torch.exp(1j * 0.1 * k)


def decibels(z):
    return 20 * torch.log10(z.abs())


def loss_fn(pred, target):
    with torch.no_grad():
        target_db = decibels(target)               # -inf where the pipe is mute
        audible = torch.isfinite(target_db) & (target_db > 0)
    residual = (pred - target).abs().pow(2).sum() / N
    level = (decibels(pred[audible]) - target_db[audible]).abs().sum()
    return residual + level, int(audible.sum()), target_db.min().item()


def main():
    g = torch.Generator().manual_seed(16)
    net = PipeFilter()
    opt = torch.optim.Adam([
        {"params": [net.direct], "lr": 0.05},
        {"params": [*net.enter.parameters(), *net.leave.parameters()], "lr": 1e-3},
        {"params": [net.threshold], "lr": 1e-4},
    ])
    for take in range(1, 49):
        x = wind(12, g)
        if take % 16 == 0:
            x = x * 8            # tutti
        target = speak(x)
        loss, n, floor = loss_fn(net(torch.fft.rfft(x)), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if take % 2 == 0:
            print(f"take {take:02d} loss {loss.item():.1f} audible {n} floor {floor:.1f} dB")
    total = sum(torch.view_as_real(p.detach()).sum() if p.is_complex() else p.detach().sum() for p in net.parameters())
    print("sum", f"{total.item():.4f}")


main()
