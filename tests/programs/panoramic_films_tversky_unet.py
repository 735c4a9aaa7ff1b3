"""Segmentation of teeth and fillings on panoramic films (small U-Net, focal Tversky loss)."""
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(41)
SIZE, FILMS_PER_BATCH, CLASSES = 32, 4, 3
rng = random.Random(25)


def make_film():
    ys, xs = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    label = torch.zeros(SIZE, SIZE, dtype=torch.long)
    for column in range(4, SIZE, 8):
        cy, cx = 16 + rng.randint(-3, 3), column + rng.randint(-1, 1)
        label[((ys - cy) / 7.0) ** 2 + ((xs - cx) / 3.0) ** 2 < 1] = 1
        if rng.random() < 0.5:
            label[(ys - cy + 4).abs() + (xs - cx).abs() < 3] = 2
    film = 0.2 + 0.4 * (label == 1) + 0.75 * (label == 2) + 0.1 * torch.randn(SIZE, SIZE)
    # the collimator leaves a window of the film exposed; nothing outside of it is judged
    width = int(max(0.0, rng.gauss(22, 8)))
    left = rng.randint(0, max(0, SIZE - width))
    exposed = torch.zeros(SIZE, SIZE)
    exposed[:, left:left + width] = 1.0
    return film * exposed, label, exposed


class DoubleConv(nn.Sequential):
    def __init__(self, inp, out):
        super().__init__(
            nn.Conv2d(inp, out, 3, padding=1), nn.GroupNorm(2, out), nn.SiLU(),
            nn.Conv2d(out, out, 3, padding=1), nn.GroupNorm(2, out), nn.SiLU())


class ToothNet(nn.Module):
    def __init__(self, base=6):
        super().__init__()
        self.enc1, self.enc2 = DoubleConv(1, base), DoubleConv(base, 2 * base)
        self.bottom = DoubleConv(2 * base, 2 * base)
        self.dec2, self.dec1 = DoubleConv(4 * base, base), DoubleConv(2 * base, base)
        self.out = nn.Conv2d(base, CLASSES, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        c = self.dec2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        c = self.dec1(torch.cat([F.interpolate(c, scale_factor=2), a], 1))
        return self.out(c)


def focal_tversky(logits, label, exposed, alpha=0.3, beta=0.7, gamma=0.75, smooth=1.0):
    prob = logits.softmax(1) * exposed[:, None]
    truth = F.one_hot(label, CLASSES).movedim(-1, 1).float() * exposed[:, None]
    tp = (prob * truth).sum((2, 3))
    fp = (prob * (1 - truth)).sum((2, 3))
    fn = ((1 - prob) * truth).sum((2, 3))
    index = (tp + smooth) / (tp + alpha * fp + beta * fn + smooth)
    return (1 - index).pow(gamma).mean()


def main():
    films = [make_film() for _ in range(36 * FILMS_PER_BATCH)]
    net = ToothNet()
    optim = torch.optim.AdamW(net.parameters(), lr=4e-3)
    for it in range(36):
        chunk = films[it * FILMS_PER_BATCH:(it + 1) * FILMS_PER_BATCH]
        image, label, exposed = (torch.stack(part) for part in zip(*chunk))
        loss = focal_tversky(net(image[:, None]), label, exposed)
        optim.zero_grad()
        loss.backward()
        optim.step()
        print(f"it {it + 1:2d}  focal tversky {loss.item():.5f}")
    print("sum of absolute weights", sum(p.abs().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
