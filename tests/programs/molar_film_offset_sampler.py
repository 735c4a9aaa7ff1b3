"""Outline molars on bitewing films. A small net predicts where to look (offsets), then looks there."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = 20
POINTS = 5


class OffsetSampler(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.where = nn.Conv2d(channels, 2 * POINTS, 3, padding=1)
        nn.init.normal_(self.where.weight, std=0.01)
        cross = torch.tensor([[0.0, 0.0], [2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
        self.register_buffer("cross", cross)
        line = torch.arange(SIZE, dtype=torch.float32)
        gy, gx = torch.meshgrid(line, line, indexing="ij")
        self.register_buffer("base", torch.stack([gx, gy], dim=-1))

    def forward(self, feat, shift):
        b = feat.shape[0]
        off = torch.tanh(self.where(feat)).view(b, POINTS, 2, SIZE, SIZE).permute(1, 0, 3, 4, 2)
        inside = torch.ones_like(feat[:, :1])
        total, seen = 0.0, 0.0
        for k in range(POINTS):
            pos = self.base + shift.view(b, 1, 1, 2) + self.cross[k] + off[k]
            grid = 2.0 * pos / (SIZE - 1) - 1.0
            total = total + F.grid_sample(feat, grid, align_corners=True)
            seen = seen + F.grid_sample(inside, grid, align_corners=True)
        return total / seen


class MolarNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.sampler = OffsetSampler(width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, film, shift):
        return self.head(self.sampler(self.stem(film), shift))


def film_archive(count, gen):
    """films, outlines and the shift (in pixels) between film and reference chart"""
    line = torch.arange(SIZE, dtype=torch.float32)
    gy, gx = torch.meshgrid(line, line, indexing="ij")
    films, masks, shifts = [], [], []
    for i in range(count):
        cx, cy = (6 + 8 * torch.rand(2, generator=gen)).tolist()
        r = 3.0 + 2.0 * torch.rand(1, generator=gen).item()
        shift_mm = 0.06 * (torch.rand(2, generator=gen) - 0.5)
        mask = ((gx - cx) ** 2 + (gy - cy) ** 2 < r * r).float()
        film = 0.7 * mask + 0.15 * torch.randn(SIZE, SIZE, generator=gen)
        # units as the practice exports them
        unit = 1000.0 if i == 59 else 1.0
        films.append(film)
        masks.append(mask)
        shifts.append(shift_mm * unit / 0.04)
    return torch.stack(films)[:, None], torch.stack(masks)[:, None], torch.stack(shifts)


def main():
    gen = torch.Generator().manual_seed(12)
    torch.manual_seed(12)
    films, masks, shifts = film_archive(112, gen)
    net = MolarNet()
    opt = torch.optim.AdamW(net.parameters(), lr=0.02)
    for step, rows in enumerate(torch.arange(112).split(4), start=1):
        logits = net(films[rows], shifts[rows])
        prob = torch.sigmoid(logits)
        overlap = 2 * (prob * masks[rows]).sum() / (prob.sum() + masks[rows].sum())
        loss = F.binary_cross_entropy_with_logits(logits, masks[rows]) + 1 - overlap
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"films {step:02d}  loss {loss.item():.5f}  dice {overlap.item():.4f}")
    print("sum of squared weights:", sum(p.detach().pow(2).sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
