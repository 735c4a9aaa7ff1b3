"""Gravel bars in drone pictures of a braided river: a one-level U-Net, soft Dice plus the length of the outline."""
import torch
from torch import nn
import torch.nn.functional as F


def drone_pictures(n, size=24, seed=77):
    gen = torch.Generator().manual_seed(seed)
    grid = torch.arange(size).float()
    pics, bars = [], []
    for _ in range(n):
        cy, cx = 6 + 12 * torch.rand(2, generator=gen)
        a, b = 3 + 5 * torch.rand(2, generator=gen)
        bar = (((grid[:, None] - cy) / a) ** 2 + ((grid[None, :] - cx) / b) ** 2 < 1).float()
        tone = torch.stack([0.35 + 0.4 * bar, 0.40 + 0.25 * bar, 0.55 - 0.1 * bar])
        pics.append(tone + 0.08 * torch.randn(3, size, size, generator=gen))
        bars.append(bar)
    return torch.stack(pics), torch.stack(bars)


def double(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.LeakyReLU(0.1),
                         nn.Conv2d(cout, cout, 3, padding=1), nn.LeakyReLU(0.1))


class SmallUNet(nn.Module):
    def __init__(self, w=10):
        super().__init__()
        self.enter = double(3, w)
        self.deep = double(w, 2 * w)
        self.up = nn.ConvTranspose2d(2 * w, w, 2, stride=2)
        self.leave = double(2 * w, w)
        self.pixel = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        wide = self.enter(x)
        low = self.deep(F.avg_pool2d(wide, 2))
        return self.pixel(self.leave(torch.cat([wide, self.up(low)], dim=1))).squeeze(1)


def dice_loss(p, t):
    inter = (p * t).sum((1, 2))
    return 1 - ((2 * inter + 1) / (p.sum((1, 2)) + t.sum((1, 2)) + 1)).mean()


def outline(p):
    down = p[:, 1:, :-1] - p[:, :-1, :-1]
    right = p[:, :-1, 1:] - p[:, :-1, :-1]
    return (down ** 2 + right ** 2).sqrt().mean()


def train():
    torch.manual_seed(77)
    torch.set_num_threads(1)
    flights, per = 35, 8
    pics, bars = drone_pictures(flights * per)
    net = SmallUNet()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    for i in range(flights):
        x, t = pics[i * per:(i + 1) * per], bars[i * per:(i + 1) * per]
        p = torch.sigmoid(net(x))
        overlap, length = dice_loss(p, t), outline(p)
        loss = overlap + 0.3 * length
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"flight {i + 1}: loss={loss.item():.5f} dice={overlap.item():.5f} outline={length.item():.5f}")
    return net


net = train()
print("sum of absolute weights = %.5f" % sum(p.detach().abs().sum().item() for p in net.parameters()))
