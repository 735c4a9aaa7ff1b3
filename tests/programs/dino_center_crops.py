"""Self-distillation without labels (DINO) on small grey scans: multi-crop, momentum teacher, centring."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    images: int = 192
    batch: int = 12
    epochs: int = 2
    out_dim: int = 32
    teacher_temp: float = 0.05
    student_temp: float = 0.1
    center_momentum: float = 0.9
    ema: float = 0.98
    lr: float = 2e-3
    seed: int = 6


class Scans:
    """Uint8 scans as they come from the plate reader; some wells are read with the shutter closed."""

    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        y, x = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
        frequency = 0.2 + 0.6 * torch.rand(n, 1, 1, generator=gen)
        waves = 120 + 90 * torch.sin(frequency * x + torch.randn(n, 1, 1, generator=gen) * y)
        self.pixels = (waves + 8 * torch.randn(n, 24, 24, generator=gen)).clamp(0, 255).to(torch.uint8)
        self.pixels[57] = 0

    def crops(self, index, size, gen):
        out = []
        for i in index:
            top, left = (int(torch.randint(24 - size + 1, (1,), generator=gen)) for _ in range(2))
            out.append(self.pixels[i, top:top + size, left:left + size].float())
        return standardise(torch.stack(out)).unsqueeze(1)


def standardise(crop):
    """Zero mean and unit contrast, crop by crop: the lamp ages."""
    mean = crop.mean((1, 2), keepdim=True)
    std = crop.std((1, 2), keepdim=True)
    return (crop - mean) / std


class Net(nn.Module):
    def __init__(self, out_dim):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, stride=2), nn.GELU(),
                                      nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.GELU(),
                                      nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16))
        self.last = nn.Linear(16, out_dim, bias=False)

    def forward(self, x):
        return self.last(F.normalize(self.mlp(self.backbone(x)), dim=-1))


class DINOLoss:
    def __init__(self, args):
        self.args = args
        self.center = torch.zeros(1, args.out_dim)

    def __call__(self, student_views, teacher_views):
        a = self.args
        targets = [((t - self.center) / a.teacher_temp).softmax(-1) for t in teacher_views]
        total, terms = 0, 0
        for i, t in enumerate(targets):
            for j, s in enumerate(student_views):
                if i != j:
                    total = total - (t * (s / a.student_temp).log_softmax(-1)).sum(-1).mean()
                    terms += 1
        self.update_center(torch.cat(teacher_views))
        return total / terms

    @torch.no_grad()
    def update_center(self, out):
        m = self.args.center_momentum
        self.center = self.center * m + out.mean(0, keepdim=True) * (1 - m)


def train(args):
    torch.manual_seed(args.seed)
    scans, gen = Scans(args.images, args.seed), torch.Generator().manual_seed(args.seed + 3)
    student = Net(args.out_dim)
    teacher = copy.deepcopy(student).requires_grad_(False)
    criterion = DINOLoss(args)
    opt = torch.optim.AdamW(student.parameters(), lr=args.lr, weight_decay=0.04)
    step = 0
    for epoch in range(args.epochs):
        order = torch.randperm(args.images, generator=gen)
        for index in order.split(args.batch):
            step += 1
            large = [scans.crops(index, 20, gen) for _ in range(2)]
            small = [scans.crops(index, 12, gen) for _ in range(2)]
            with torch.no_grad():
                targets = [teacher(v) for v in large]
            loss = criterion([student(v) for v in large + small], targets)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 3.0)
            opt.step()
            with torch.no_grad():
                for s, t in zip(student.parameters(), teacher.parameters()):
                    t.mul_(args.ema).add_(s, alpha=1 - args.ema)
            print(f"epoch {epoch} step {step} loss {loss.item():.5f}")
    print("finite", int(all(p.isfinite().all() for p in student.parameters())))


if __name__ == "__main__":
    train(Args())
