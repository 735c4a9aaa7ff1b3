import math

import torch
from torch import nn


def tracings(n, length, gen):
    """Fetal heart rate in units of 10 beats, with or without late decelerations."""
    clock = torch.arange(length) / length
    base = 0.4 * torch.randn(n, 1, generator=gen)
    wobble = 0.3 * torch.sin(2 * math.pi * (6 * clock + torch.rand(n, 1, generator=gen)))
    label = (torch.rand(n, generator=gen) < 0.5).float()
    where = 0.3 + 0.5 * torch.rand(n, 1, generator=gen)
    dip = -2.4 * torch.exp(-((clock - where) / 0.07) ** 2)
    x = base + wobble + label[:, None] * dip + 0.2 * torch.randn(n, length, generator=gen)
    return x, label


class ModeKernel(nn.Module):
    def __init__(self, channels, modes):
        super().__init__()
        self.log_dt = nn.Parameter(torch.empty(channels, 1).uniform_(math.log(0.01), math.log(0.1)))
        self.log_decay = nn.Parameter(torch.full((channels, modes), math.log(0.5)))
        self.freq = nn.Parameter(math.pi * torch.arange(1, modes + 1).float().repeat(channels, 1))
        self.c = nn.Parameter(torch.randn(channels, modes, 2) * 0.5)
        self.register_buffer("alive", torch.ones(channels, modes))

    def forward(self, length):
        a = torch.complex(-self.log_decay.exp(), self.freq) * self.alive
        dta = self.log_dt.exp() * a
        held = (torch.exp(dta) - 1) / a
        weight = torch.view_as_complex(self.c) * held
        steps = torch.arange(length)
        return 2 * torch.einsum("cm,cml->cl", weight, torch.exp(dta[..., None] * steps)).real

    @torch.no_grad()
    def thin_out(self, count):
        strength = self.c.norm(dim=-1)
        weakest = strength.topk(count, dim=-1, largest=False).indices
        self.alive.scatter_(1, weakest, 0.0)


class StateLayer(nn.Module):
    def __init__(self, channels, modes):
        super().__init__()
        self.kernel = ModeKernel(channels, modes)
        self.skip = nn.Parameter(torch.ones(channels, 1))
        self.mix = nn.Linear(channels, channels)

    def forward(self, u):
        length = u.shape[-1]
        k = torch.fft.rfft(self.kernel(length), n=2 * length)
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * length) * k, n=2 * length)[..., :length]
        y = nn.functional.gelu(y + self.skip * u)
        return u + self.mix(y.transpose(1, 2)).transpose(1, 2)


class Cardiotocograph(nn.Module):
    def __init__(self, channels=8, modes=6):
        super().__init__()
        self.lift = nn.Conv1d(1, channels, 1)
        self.stack = nn.ModuleList([StateLayer(channels, modes) for _ in range(2)])
        self.read = nn.Linear(channels, 1)

    def forward(self, x):
        u = self.lift(x[:, None])
        for layer in self.stack:
            u = layer(u)
        return self.read(u.amax(-1)).squeeze(-1)


def fit():
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(88)
    model = Cardiotocograph()
    opt = torch.optim.AdamW(model.parameters(), lr=1.5e-2, weight_decay=0.01)
    for step in range(1, 37):
        x, y = tracings(32, 96, gen)
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step}: {loss.item():.4f}")
        if step == 18:
            for layer in model.stack:
                layer.kernel.thin_out(2)
            left = int(sum(l.kernel.alive.sum() for l in model.stack))
            print(f"modes kept: {left}")
    return model


net = fit()
print("norm of the weights:", math.sqrt(sum(p.detach().square().sum().item() for p in net.parameters())))
