"""DDPM on two moons, exponential moving average of the weights."""
import copy
import math

import torch
import torch.nn as nn


class TimeMLP(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.register_buffer("freq", torch.exp(-math.log(1000) * torch.arange(0, dim, 2) / dim))
        self.net = nn.Sequential(nn.Linear(2 + dim, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, x, t):
        angles = t[:, None].float() * self.freq
        return self.net(torch.cat([x, angles.sin(), angles.cos()], dim=1))


class EMA:
    def __init__(self, model, decay):
        self.shadow, self.decay = copy.deepcopy(model).eval().requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)


torch.manual_seed(0)
torch.set_num_threads(1)
T = 50
alpha_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.05, T), 0)
model = TimeMLP()
ema = EMA(model, 0.95)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
for i in range(20):
    a = torch.rand(64) * math.pi
    half = torch.randint(0, 2, (64,))
    x0 = torch.stack([a.cos() + half, a.sin() * (1 - 2 * half) + 0.5 * half], 1)
    t, noise = torch.randint(0, T, (64,)), torch.randn(64, 2)
    ab = alpha_bar[t][:, None]
    loss = (model(ab.sqrt() * x0 + (1 - ab).sqrt() * noise, t) - noise).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update(model)
    print(i, loss.item())
print("ema", sum(p.double().sum().item() for p in ema.shadow.parameters()))
