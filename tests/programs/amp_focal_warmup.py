"""Focal loss under float16 autocast. The first updates are skipped by the scaler until the scale fits."""
from argparse import ArgumentParser

import torch
import torch.nn.functional as F


def focal_loss(logits, targets, alpha=0.25, gamma=2.0, floor=1e-6):
    p = torch.sigmoid(logits.float()).clamp(floor, 1 - floor)
    pt = torch.where(targets > 0.5, p, 1 - p)
    weight = torch.where(targets > 0.5, alpha, 1 - alpha)
    per_item = -weight * (1 - pt) ** gamma * torch.log(pt)
    return torch.minimum(per_item, torch.tensor(4.0)).sum() / targets.sum().clamp(min=1)


class Detector(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.backbone = torch.nn.Sequential(torch.nn.Linear(32, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
        self.cls = torch.nn.Linear(width, 5)

    def forward(self, x):
        return self.cls(torch.relu(self.backbone(x)))


if __name__ == "__main__":
    ap = ArgumentParser()
    ap.add_argument("--width", type=int, default=64)
    ap.add_argument("--steps", type=int, default=22)
    ap.add_argument("--init-scale", type=float, default=2.0 ** 26)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(30)
    net = Detector(args.width)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=args.init_scale)
    skipped = 0
    for step in range(args.steps):
        x = torch.randn(64, 32)
        y = (x[:, :5] > 1.2).float()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
        loss = focal_loss(logits, y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        skipped += scaler.get_scale() < before
        print(f"step {step} loss {loss.item()!r} scale {before:g} skipped {skipped}")
    print("weights", sum(p.double().sum().item() for p in net.parameters()))
