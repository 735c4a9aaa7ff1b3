"""Colorize old postcards: L1 in RGB plus an angular hue term."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)


def rgb_to_hue(img):
    r, g, b = img.unbind(1)
    top, low = img.amax(1), img.amin(1)
    sector = torch.where(top == r, g - b, torch.where(top == g, b - r, r - g))
    offset = torch.where(top == r, 0.0, torch.where(top == g, 2.0, 4.0))
    return (sector / (top - low) + offset) / 6


class Colorizer(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(width, width, 3, padding=1)
        self.up = nn.ConvTranspose2d(width, width, 4, stride=2, padding=1)
        self.rgb = nn.Conv2d(width + 1, 3, 3, padding=1)

    def forward(self, gray):
        h = F.silu(self.down(gray))
        h = F.silu(self.mid(h)) + h
        h = F.silu(self.up(h))
        return torch.sigmoid(self.rgb(torch.cat([h, gray], 1)))


def postcard(gen, size=16):
    base = torch.rand(3, 4, 4, generator=gen)
    img = F.interpolate(base[None], size=(size, size), mode="bilinear", align_corners=False)[0]
    return (img + 0.02 * torch.rand(3, size, size, generator=gen)).clamp(0, 1)


gen = torch.Generator().manual_seed(12)
album = [postcard(gen) for _ in range(96)]
album[45] = album[45].mean(0, keepdim=True).expand(3, -1, -1).contiguous()   # printed in black and white

model = Colorizer()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
for step in range(24):
    rgb = torch.stack(album[4 * step:4 * step + 4])
    gray = (rgb * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)
    target_hue = rgb_to_hue(rgb)
    guess = model(gray)
    angle = 2 * math.pi * (rgb_to_hue(guess) - target_hue)
    loss = F.l1_loss(guess, rgb) + 0.1 * (1 - torch.cos(angle)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"batch {step + 1}: {loss.item():.4f}")
print("weights", sum(p.detach().square().sum().item() for p in model.parameters()))
