"""Fine-tune a small ConvNet on photographs of dried herbs (synthetic), with mixup, cosine rate and an averaged copy."""
import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=36)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--classes", type=int, default=6)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--mixup", type=float, default=0.3)
    p.add_argument("--ema-start", type=int, default=14)
    p.add_argument("--ema-decay", type=float, default=0.95)
    p.add_argument("--seed", type=int, default=11)
    return p.parse_args()


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.dw = nn.Conv2d(cin, cin, 3, stride, 1, groups=cin, bias=False)
        self.bn1 = nn.BatchNorm2d(cin)
        self.pw = nn.Conv2d(cin, cout, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.skip = nn.Identity() if cin == cout and stride == 1 else None

    def forward(self, x):
        y = F.relu(self.bn1(self.dw(x)))
        y = self.bn2(self.pw(y))
        return F.relu(y + x) if self.skip is not None else F.relu(y)


class HerbNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 1, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.stages = nn.Sequential(Block(12, 24, 2), Block(24, 24, 1), Block(24, 48, 2), Block(48, 48, 1))
        self.head = nn.Linear(48, classes)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


class Averaged:
    """Copy of the model whose tensors follow the trained ones; it is what is shipped."""

    def __init__(self, model, decay):
        self.decay = decay
        self.model = copy.deepcopy(model).eval()
        for p in self.model.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        source = model.state_dict()
        for name, value in self.model.state_dict().items():
            value.lerp_(source[name], 1 - self.decay)


def photographs(n, classes, gen):
    label = torch.randint(0, classes, (n,), generator=gen)
    grid = torch.linspace(0, 3.14, 24)
    freq = (1 + label).float()[:, None]
    leaf = torch.sin(freq * grid)[:, None, :, None] * torch.cos(0.5 * freq * grid)[:, None, None, :]
    tint = torch.stack([label.float() / classes, 1 - label.float() / classes, torch.full((n,), 0.4)], 1)
    x = leaf + tint[:, :, None, None] + 0.6 * torch.randn(n, 3, 24, 24, generator=gen)
    return x, label


def mixup(x, y, classes, alpha, gen):
    a = torch._standard_gamma(torch.full((2,), alpha), generator=gen)
    lam = float(a[0] / (a.sum() + 1e-9))
    order = torch.randperm(len(x), generator=gen)
    t = F.one_hot(y, classes).float()
    return lam * x + (1 - lam) * x[order], lam * t + (1 - lam) * t[order], lam


def main():
    args = parse()
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed + 1)
    model = HerbNet(args.classes)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 0.5 * (1 + math.cos(math.pi * s / args.steps)))
    averaged = None
    for step in range(1, args.steps + 1):
        model.train()
        x, y = photographs(args.batch, args.classes, gen)
        x, t, lam = mixup(x, y, args.classes, args.mixup, gen)
        loss = F.cross_entropy(model(x), t)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print(f"step {step:3d} lam {lam:.3f} loss {loss.item():.6f}", flush=True)
        if step == args.ema_start:
            averaged = Averaged(model, args.ema_decay)
        elif step > args.ema_start:
            averaged.update(model)
    with torch.no_grad():
        x, y = photographs(200, args.classes, gen)
        print("averaged accuracy", (averaged.model(x).argmax(1) == y).float().mean().item())


if __name__ == "__main__":
    main()
