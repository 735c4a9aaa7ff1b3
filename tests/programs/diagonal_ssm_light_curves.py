"""Next-flux prediction for slowly varying stars with a diagonal state space layer (S4D-Real, ZOH)."""
import math
import torch
from torch import nn
import torch.nn.functional as F


def light_curves(n, length, gen):
    t = torch.arange(length) / length
    amp = 0.2 + 0.3 * torch.rand(n, 1, generator=gen)
    freq = 1 + 3 * torch.rand(n, 1, generator=gen)
    phase = 2 * math.pi * torch.rand(n, 1, generator=gen)
    drift = torch.randn(n, 1, generator=gen).cumsum(1) * t
    noise = 0.02 * torch.randn(n, length, generator=gen)
    return amp * torch.sin(2 * math.pi * freq * t + phase) + drift + noise


class S4DReal(nn.Module):
    def __init__(self, channels, state=8):
        super().__init__()
        decay = torch.linspace(0.04, 2.0, state).repeat(channels, 1)
        self.decay = nn.Parameter(decay)                      # -A, kept non-negative by a relu
        self.B = nn.Parameter(torch.randn(channels, state) * 0.5)
        self.C = nn.Parameter(torch.randn(channels, state) / math.sqrt(state))
        self.D = nn.Parameter(torch.ones(channels))
        self.log_dt = nn.Parameter(torch.full((channels, 1), math.log(0.1)))

    def kernel(self, length):
        A = -F.relu(self.decay)
        dA = torch.exp(self.log_dt) * A
        A_bar = torch.exp(dA)
        B_bar = (A_bar - 1.0) / A * self.B
        powers = torch.exp(dA.unsqueeze(-1) * torch.arange(length))
        return ((self.C * B_bar).unsqueeze(-1) * powers).sum(1)

    def forward(self, u):                                      # (batch, channels, length)
        L = u.shape[-1]
        k = self.kernel(L)
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * L) * torch.fft.rfft(k, n=2 * L), n=2 * L)[..., :L]
        return y + self.D[:, None] * u


class Forecaster(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.lift = nn.Conv1d(1, width, 1)
        self.ssm = S4DReal(width)
        self.mix = nn.Sequential(nn.GELU(), nn.Conv1d(width, 1, 1))

    def forward(self, x):
        return self.mix(self.ssm(self.lift(x.unsqueeze(1)))).squeeze(1)


def main():
    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(5)
    data = light_curves(96, 65, gen)
    net = Forecaster()
    slow = [net.ssm.decay, net.ssm.log_dt]
    fast = [p for p in net.parameters() if all(p is not q for q in slow)]
    opt = torch.optim.AdamW([{"params": fast, "weight_decay": 0.01},
                             {"params": slow, "lr": 3e-3, "weight_decay": 0.0}], lr=5e-3)
    for step in range(1, 46):
        rows = torch.randint(0, 96, (24,), generator=gen)
        batch = data[rows]
        loss = F.mse_loss(net(batch[:, :-1]), batch[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step:3d}  mse {loss.item():.6f}")
    print("final", sum(p.abs().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
