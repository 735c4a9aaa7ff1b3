"""Segmentation of salt pans from the air: background, dike, brine, sluice.  Generalised Dice plus a boundary term."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

CLASSES = 4


class PanTiles(Dataset):
    def __init__(self, n=240, size=24, seed=60):
        self.n, self.size, self.seed = n, size, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 1000 + i)
        s = self.size
        label = torch.zeros(s, s, dtype=torch.long)
        top, left = (int(v) for v in torch.randint(1, s // 2 - 2, (2,), generator=g))
        label[top:top + 11, left:left + 11] = 1
        label[top + 1:top + 10, left + 1:left + 10] = 2
        if torch.rand(1, generator=g) < 0.5:             # a sluice gate, two by two pixels
            label[top:top + 2, left + 4:left + 6] = 3
        tint = torch.tensor([[0.2, 0.5, 0.9, 0.1], [0.3, 0.4, 0.2, 0.9], [0.4, 0.1, 0.3, 0.6]])
        image = tint[:, label] + 0.15 * torch.randn(3, s, s, generator=g)
        return image, label


def block(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU())


class TinyUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.d1, self.d2, self.mid = block(3, 12), block(12, 24), block(24, 24)
        self.up = nn.ConvTranspose2d(24, 12, 2, stride=2)
        self.u1 = block(24, 12)
        self.out = nn.Conv2d(12, CLASSES, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.mid(self.d2(F.max_pool2d(a, 2)))
        return self.out(self.u1(torch.cat([a, self.up(b)], 1)))


def generalised_dice(prob, onehot):
    # Sudre et al. 2017: classes are weighted by the inverse square of their area
    area = onehot.sum(dim=(0, 2, 3))
    weight = 1.0 / area.square()
    inter = (weight * (prob * onehot).sum(dim=(0, 2, 3))).sum()
    union = (weight * (prob + onehot).sum(dim=(0, 2, 3))).sum()
    return 1 - 2 * inter / union


def boundary(prob, onehot):
    edge_p = F.max_pool2d(prob, 3, 1, 1) - prob
    edge_t = F.max_pool2d(onehot, 3, 1, 1) - onehot
    return F.l1_loss(edge_p, edge_t)


def main():
    set_seed(7)
    acc = Accelerator(cpu=True)
    model = TinyUNet()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(PanTiles(), batch_size=6)
    model, opt, loader = acc.prepare(model, opt, loader)
    for step, (image, label) in enumerate(loader, 1):
        prob = model(image).softmax(1)
        onehot = F.one_hot(label, CLASSES).permute(0, 3, 1, 2).float()
        dice = generalised_dice(prob, onehot)
        edge = boundary(prob, onehot)
        loss = dice + 0.5 * edge
        acc.backward(loss)
        acc.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        acc.print(f"step {step} gdl {dice.item():.6f} edge {edge.item():.6f}", flush=True)
    acc.print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
