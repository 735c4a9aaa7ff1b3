"""Small photographs of cacti, four genera. Augmentation grows harder level by level."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 12
LEVELS = [0.0, 0.2, 0.45, 0.8, 0.3]


class Cacti(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(17)
        yy, xx = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
        ribs = [torch.cos(xx * 1.6), torch.cos(yy * 1.6), torch.cos((xx + yy) * 0.9), torch.cos(((xx - 6) ** 2 + (yy - 6) ** 2) * 0.12)]
        self.data = [(ribs[i % 4] + 0.4 * torch.randn(SIDE, SIDE, generator=g), i % 4) for i in range(n)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.data[i]


class Collate:
    """Flips and erases. Erased pixels are unknown, not black."""

    def __init__(self):
        self.level = 0.0
        self.g = torch.Generator().manual_seed(3)

    def __call__(self, items):
        photos = torch.stack([p for p, _ in items])
        labels = torch.tensor([c for _, c in items])
        for p in photos:
            if torch.rand(1, generator=self.g) < 0.5:
                p.copy_(p.flip(1))
            h = int(SIDE * self.level * 1.25 * torch.rand(1, generator=self.g).sqrt())
            top = int(torch.randint(0, max(SIDE - h, 0) + 1, (1,), generator=self.g))
            p[top:top + h] = float("nan")
        return photos, labels


class KnownPixels(nn.Module):
    def forward(self, x):
        known = ~torch.isnan(x)
        count = known.sum((1, 2), keepdim=True).clamp(min=1)
        x = torch.where(known, x, torch.zeros_like(x))
        mean = x.sum((1, 2), keepdim=True) / count
        x = torch.where(known, x - mean, torch.zeros_like(x))
        return torch.stack([x, known.float()], 1)


def optimizer_for(net, level):
    return torch.optim.SGD(net.parameters(), lr=0.08 * (1 - 0.5 * level), momentum=0.8)


def run():
    torch.manual_seed(8)
    collate = Collate()
    loader = DataLoader(Cacti(112), batch_size=16, shuffle=True, collate_fn=collate, drop_last=True,
                        generator=torch.Generator().manual_seed(9))
    net = nn.Sequential(KnownPixels(), nn.Conv2d(2, 6, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(150, 4))
    seen = 0
    for level in LEVELS:
        collate.level = level
        opt = optimizer_for(net, level)
        for photos, labels in loader:
            seen += 1
            loss = nn.functional.cross_entropy(net(photos), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"{seen:3d} | level {level:.2f} | brightness {photos.mean().item():+.3f} | loss {loss.item():.4f}")
    print("absolute sum of all weights =", sum(p.abs().sum().item() for p in net.parameters()))


run()
