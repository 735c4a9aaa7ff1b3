import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Fold(nn.Module):
    """One residual pass over the Stokes Q and U planes."""

    def __init__(self, width):
        super().__init__()
        self.a = nn.Conv2d(2, width, 3, padding=1)
        self.b = nn.Conv2d(width, 2, 3, padding=1)

    def forward(self, qu):
        return qu + self.b(F.gelu(self.a(qu)))


class Boxes(nn.Module):
    """Clean boxes: only pixels above the level are kept."""

    def __init__(self):
        super().__init__()
        self.level = 0.0

    def forward(self, qu):
        height = qu.detach().abs().amax(dim=1, keepdim=True)
        return qu * (height >= self.level).to(qu.dtype)


class PolarisedIntensity(nn.Module):
    def forward(self, qu):
        q, u = qu.unbind(dim=1)
        return torch.hypot(q, u)


class Deconvolver(nn.Module):
    def __init__(self, passes=2, width=8):
        super().__init__()
        self.passes = nn.ModuleList(Fold(width) for _ in range(passes))
        self.boxes = Boxes()
        self.intensity = PolarisedIntensity()

    def forward(self, dirty):
        for p in self.passes:
            dirty = p(dirty)
        clean = self.boxes(dirty)
        return clean, self.intensity(clean)


class Observations:
    def __init__(self, seed, size=14):
        self.gen = torch.Generator().manual_seed(seed)
        self.size = size
        k = torch.arange(-3, 4).float()
        beam = torch.exp(-(k[:, None] ** 2 + k[None, :] ** 2) / 4) * torch.cos(k[:, None] * 1.3)
        self.beam = (beam / beam.abs().sum()).expand(2, 1, 7, 7)

    def draw(self, n=6):
        sky = torch.zeros(n, 2, self.size, self.size)
        for i in range(n):
            for _ in range(4):
                r, c = torch.randint(2, self.size - 2, (2,), generator=self.gen).tolist()
                phase = 2 * math.pi * torch.rand((), generator=self.gen)
                flux = 1 + torch.rand((), generator=self.gen)
                sky[i, 0, r, c] = flux * torch.cos(phase)
                sky[i, 1, r, c] = flux * torch.sin(phase)
        noise = 0.03 * torch.randn(sky.shape, generator=self.gen)
        return F.conv2d(sky, self.beam, padding=3, groups=2) + noise, sky


class Imager:
    warm = 15
    rise = 0.004

    def __init__(self):
        torch.manual_seed(2)
        self.model = Deconvolver()
        self.opt = torch.optim.NAdam(self.model.parameters(), lr=4e-3)
        self.data = Observations(seed=77)

    def fit(self, cycles):
        for cycle in range(1, cycles + 1):
            self.model.boxes.level = max(0, cycle - self.warm) * self.rise
            dirty, sky = self.data.draw()
            clean, p = self.model(dirty)
            loss = F.mse_loss(clean, sky) + 0.5 * F.l1_loss(p, sky.norm(dim=1))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            print("cycle %02d  level %.3f  misfit %.6f" % (cycle, self.model.boxes.level, loss.item()))
        return sum(w.detach().double().pow(2).sum().item() for w in self.model.parameters())


if __name__ == "__main__":
    print("sum of squares of the kernels %.6f" % Imager().fit(32))
