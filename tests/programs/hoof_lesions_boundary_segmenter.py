"""Segments sole ulcers on photographs of hooves. Dice at first, then more and more of the boundary loss
(Kervadec et al.), which is an integral over a signed distance map and therefore negative when all is well."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

SIZE, CLASSES, STEPS = 24, 3, 40


def signed_distance(mask):
    """Brute force; negative inside. Without a lesion there is no boundary and the map is inf, caller beware."""
    pts = np.argwhere(mask)
    out = np.argwhere(~mask)
    grid = np.indices(mask.shape).reshape(2, -1).T
    def nearest(to):
        if len(to) == 0:
            return np.full(len(grid), np.inf)
        return np.sqrt(((grid[:, None] - to[None]) ** 2).sum(-1)).min(1)
    d = np.where(mask.reshape(-1), -nearest(out), nearest(pts))
    return d.reshape(mask.shape).astype("float32")


class Hooves(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        yy, xx = np.indices((SIZE, SIZE))
        label = np.zeros((SIZE, SIZE), dtype="int64")
        for k in (1, 2):
            if rng.random() < 0.6:
                cy, cx, r = rng.uniform(6, 18, 2).tolist() + [rng.uniform(2, 5)]
                label[(yy - cy) ** 2 + (xx - cx) ** 2 < r * r] = k
        image = np.stack([label == 1, label == 2, label == 0]).astype("float32") * 0.8
        image += rng.normal(0, 0.3, image.shape).astype("float32")
        dist = np.stack([signed_distance(label == k) for k in range(CLASSES)])
        return torch.from_numpy(image), torch.from_numpy(label), torch.from_numpy(dist)


class Block(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU())


class SmallUNet(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.down1, self.down2 = Block(3, w), Block(w, 2 * w)
        self.mid = Block(2 * w, 2 * w)
        self.up = Block(3 * w, w)
        self.head = nn.Conv2d(w, CLASSES, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        b = checkpoint(self.mid, b, use_reentrant=False)
        b = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.head(self.up(torch.cat([a, b], 1)))


def dice_loss(prob, label):
    hot = F.one_hot(label, CLASSES).permute(0, 3, 1, 2).float()
    inter = (prob * hot).sum((2, 3))
    return 1 - ((2 * inter + 1) / (prob.sum((2, 3)) + hot.sum((2, 3)) + 1)).mean()


def boundary_loss(prob, dist):
    there = torch.isfinite(dist)
    return torch.where(there, prob * dist.masked_fill(~there, 0.0), 0.0)[:, 1:].mean()


@torch.no_grad()
def hard_dice(logits, label):
    scores = []
    for k in range(1, CLASSES):
        p, t = logits.argmax(1) == k, label == k
        scores.append(2 * (p & t).sum((1, 2)) / (p.sum((1, 2)) + t.sum((1, 2))))   # 0/0: no lesion, none found
    return torch.stack(scores)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Hooves(STEPS * 6), batch_size=6, num_workers=1)
    net = SmallUNet()
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
    for step, (image, label, dist) in enumerate(loader, 1):
        alpha = min(0.9, 0.03 * step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = net(image)
        prob = logits.float().softmax(1)
        region, edge = dice_loss(prob, label), boundary_loss(prob, dist)
        loss = (1 - alpha) * region + alpha * edge
        opt.zero_grad()
        loss.backward()
        opt.step()
        d = hard_dice(logits, label)
        print(f"{step} alpha {alpha:.2f} region {region.item():.5f} edge {edge.item():.5f} loss {loss.item():.5f} "
              f"dice {d.mean().item():.4f} (seen {d.nanmean().item():.4f})", flush=True)
    print(f"{sum(p.abs().sum().item() for p in net.parameters()):.4f}", flush=True)


if __name__ == "__main__":
    main()
