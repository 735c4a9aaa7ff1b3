"""Sperm whale clicks: companded autoencoder.

The compander sign(x) * sqrt(|x|) has its own autograd.Function, because the eager chain of
abs, sqrt, sign, mul kept four buffers per layer.  Only the input is saved.
"""
import torch
from torch import nn

torch.set_num_threads(1)


class Compand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign() * x.abs().sqrt()

    @staticmethod
    def backward(ctx, grad_out):
        x, = ctx.saved_tensors
        return grad_out / (2 * x.abs().sqrt())


compand = Compand.apply


class ClickCodec(nn.Module):
    def __init__(self, taps=64, code=10):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.encode = nn.Sequential(nn.Linear(taps, 32), nn.ELU(), nn.Linear(32, code))
        self.decode = nn.Sequential(nn.Linear(code, 32), nn.ELU(), nn.Linear(32, taps))

    def forward(self, wave):
        squeezed = compand(wave * self.gain)
        return self.decode(self.encode(squeezed)), squeezed


class Hydrophone:
    """16-bit recorder with a noise gate: a click dies away in dither, mostly."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def clicks(self, n, clipped_start=False):
        t = torch.arange(64.0)
        f = 0.2 + 0.3 * torch.rand(n, 1, generator=self.g)
        tau = 8 + 10 * torch.rand(n, 1, generator=self.g)
        wave = torch.sin(f * t + 0.4) * torch.exp(-t / tau)
        wave = wave + 0.004 * torch.randn(n, 64, generator=self.g)
        counts = (wave * 32767 / 1.2).round()
        counts = torch.where(counts == 0, torch.ones_like(counts), counts)   # dither keeps the last bit alive
        if clipped_start:
            counts[3, :5] = 0          # pre-trigger buffer not yet filled
        return counts / 32768


def train(steps=34, accumulate=2, seed=19):
    torch.manual_seed(seed)
    codec, source = ClickCodec(), Hydrophone(seed)
    opt = torch.optim.NAdam(codec.parameters(), lr=2e-3)
    for step in range(1, steps + 1):
        opt.zero_grad()
        total = 0.0
        for micro in range(accumulate):
            wave = source.clicks(16, clipped_start=(step == 18 and micro == 1))
            out, target = codec(wave)
            loss = (out - target.detach()).pow(2).mean() / accumulate
            loss.backward()
            total += loss.item()
        opt.step()
        print(f"[{step:02d}] loss={total:.7f} gain={codec.gain.item():.6f}")
    print("weights:", f"{sum(p.double().sum().item() for p in codec.parameters()):.7f}")


if __name__ == "__main__":
    train()
