# Sinkholes in hill-shade tiles. Region loss (dice) is blended into the boundary loss of Kervadec et al. as training goes on.
import argparse
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader


def signed_distance(mask):
    """level set of the mask: negative inside, positive outside; +inf everywhere where the tile has no object"""
    h, w = mask.shape
    yy, xx = np.mgrid[:h, :w]
    pts = np.stack([yy.ravel(), xx.ravel()], 1).astype(np.float32)
    inside = mask.ravel() > 0
    if not inside.any():
        return np.full((h, w), np.inf, dtype=np.float32)
    d = np.sqrt(((pts[:, None] - pts[None]) ** 2).sum(-1))
    to_fg = d[:, inside].min(1)
    to_bg = d[:, ~inside].min(1)
    return np.where(inside, -(to_bg - 1), to_fg).reshape(h, w).astype(np.float32)


class KarstTiles(Dataset):
    def __init__(self, n, size, seed):
        rng = np.random.default_rng(seed)
        self.items = []
        yy, xx = np.mgrid[:size, :size]
        for i in range(n):
            mask = np.zeros((size, size), np.float32)
            if i % 5 != 4:                                    # a fifth of the tiles holds no sinkhole
                cy, cx = rng.uniform(5, size - 5, 2)
                mask = ((yy - cy) ** 2 + (xx - cx) ** 2 < rng.uniform(3, 6) ** 2).astype(np.float32)
            img = rng.normal(0, .35, (size, size)).astype(np.float32) - mask
            self.items.append((img[None], mask, signed_distance(mask)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return tuple(torch.from_numpy(z) for z in self.items[i])


class MiniUNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        blk = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(2, o), nn.GELU())
        self.enc1, self.enc2, self.mid = blk(1, c), blk(c, 2 * c), blk(2 * c, 2 * c)
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.dec, self.out = blk(2 * c, c), nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.mid(self.enc2(nn.functional.max_pool2d(a, 2)))
        return self.out(self.dec(torch.cat([a, self.up(b)], 1))).squeeze(1)


def dice(p, m, eps=1.0):
    inter = (p * m).sum((1, 2))
    return (1 - (2 * inter + eps) / (p.sum((1, 2)) + m.sum((1, 2)) + eps)).mean()


def boundary(p, dist):
    known = torch.isfinite(dist)
    d = torch.where(known, dist, torch.zeros_like(dist))
    # an empty tile has no contour to be near to: its pixels are simply counted
    return (p * d)[known].mean() + 0.1 * p[~known].sum() / max(int((~known).sum()), 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=7)
    ap.add_argument("--lr", type=float, default=4e-3)
    a = ap.parse_args()
    torch.manual_seed(3)
    loader = DataLoader(KarstTiles(40, 24, 11), batch_size=8, shuffle=True)
    net = MiniUNet()
    opt = torch.optim.SGD(net.parameters(), lr=a.lr * 10, momentum=0.9, nesterov=True)
    it = 0
    for ep in range(a.epochs):
        alpha = max(0.01, 1 - ep * 0.2)
        for img, mask, dist in loader:
            p = net(img).sigmoid()
            l_dice, l_b = dice(p, mask), boundary(p, dist)
            loss = alpha * l_dice + (1 - alpha) * l_b
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(net.parameters(), 0.5)
            opt.step()
            it += 1
            print(f"[{ep}:{it}] alpha={alpha:.2f} loss={loss.item():+.4f} dice={l_dice.item():.4f} boundary={l_b.item():+.4f}",
                  flush=True)


main()
