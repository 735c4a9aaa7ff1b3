"""Small Glow on texture patches: squeeze, 1x1 mixing, affine coupling."""
import math

import torch
from torch import nn

torch.manual_seed(3)


class Mixing(nn.Module):
    """Invertible 1x1 convolution."""

    def __init__(self, channels):
        super().__init__()
        w = torch.linalg.qr(torch.randn(channels, channels))[0]
        self.weight = nn.Parameter(w.contiguous())

    def forward(self, x):
        pixels = x.shape[2] * x.shape[3]
        volume = torch.det(self.weight).abs()
        logdet = pixels * torch.log(volume)
        return nn.functional.conv2d(x, self.weight[:, :, None, None]), logdet


class Coupling(nn.Module):
    def __init__(self, channels, hidden=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(channels // 2, hidden, 3, padding=1), nn.ReLU(),
            nn.Conv2d(hidden, channels, 1))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        shift, s = self.net(a / 64).chunk(2, 1)
        s = torch.tanh(s)
        return torch.cat([a, b * s.exp() + shift], 1), s.sum((1, 2, 3))


class FlowStep(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.mix = Mixing(channels)
        self.couple = Coupling(channels)

    def forward(self, x):
        x, d1 = self.mix(x)
        x, d2 = self.couple(x)
        return x, d1 + d2


class Glow(nn.Module):
    def __init__(self, channels=192, depth=2):
        super().__init__()
        self.flows = nn.ModuleList(FlowStep(channels) for _ in range(depth))

    def forward(self, x):
        z, total = x, 0.0
        for flow in self.flows:
            z, d = flow(z)
            total = total + d
        prior = -0.5 * (z.pow(2) + math.log(2 * math.pi)).sum((1, 2, 3))
        return prior + total


def patches(n):
    base = torch.randn(n, 3, 16, 16)
    img = nn.functional.avg_pool2d(base, 3, 1, 1) * 2.5 + 0.4 * torch.randn(n, 3, 16, 16)
    return img * 80.0


model = Glow()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
data = patches(128)
dims = 3 * 16 * 16
for step in range(60):
    x = data[torch.randint(0, 128, (16,))]
    x = nn.functional.pixel_unshuffle(x + torch.rand_like(x), 8)
    loss = -model(x).mean() / dims
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step + 1:3d}  nats/dim {loss.item():.4f}")
print("weights", sum(p.detach().pow(2).sum().item() for p in model.parameters()))
