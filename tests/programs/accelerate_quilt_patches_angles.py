"""Quilt patches: two photographs of one patch should point in one direction, patches of other quilts
at least 60 degrees away. accelerate, bfloat16, four micro-batches per update."""
import math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import set_seed


def photographs(n_quilts, n, g):
    motif = torch.randn(n_quilts, 1, 12, 12, generator=g)
    quilt = torch.randint(0, n_quilts, (n,), generator=g)
    own = 0.4 * torch.randn(n, 1, 12, 12, generator=g)

    def shot():
        light = 1 + 0.2 * torch.randn(n, 1, 1, 1, generator=g)
        return light * (motif[quilt] + own) + 0.25 * torch.randn(n, 1, 12, 12, generator=g)

    return TensorDataset(shot(), shot(), quilt)


class PatchNet(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.GELU(), nn.MaxPool2d(2),
                                  nn.Conv2d(12, 24, 3, padding=1), nn.GELU(), nn.MaxPool2d(2))
        self.head = nn.Linear(24 * 9, dim)

    def forward(self, x):
        return self.head(self.conv(x).flatten(1))


def degrees_apart(a, b):
    """matrix of the angles between the rows of a and the rows of b, in radians"""
    cos = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T
    # rounding may push it a hair beyond one
    return torch.acos(cos.clamp(-1, 1))


def angle_loss(a, b, quilt):
    ang = degrees_apart(a, b)
    same = torch.eye(len(a), dtype=torch.bool)
    other = quilt[:, None] != quilt[None]
    pull = ang[same].mean()
    push = F.relu(math.pi / 3 - ang)[other].mean()
    return pull + 2.0 * push


def main():
    set_seed(11)
    acc = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=4)
    g = torch.Generator().manual_seed(11)
    data = photographs(9, 960, g)
    loader = DataLoader(data, batch_size=12, shuffle=True, generator=torch.Generator().manual_seed(12), drop_last=True)
    net = PatchNet()
    opt = torch.optim.AdamW(net.parameters(), lr=1.5e-3, weight_decay=0.01)
    net, opt, loader = acc.prepare(net, opt, loader)
    update, window = 0, []
    for epoch in range(3):
        for left, right, quilt in loader:
            with acc.accumulate(net):
                with acc.autocast():
                    loss = angle_loss(net(left), net(right), quilt)
                acc.backward(loss)
                window.append(loss.item())
                opt.step()
                opt.zero_grad()
            if acc.sync_gradients:
                update += 1
                acc.print(f"update {update} loss {sum(window) / len(window):.6f}", flush=True)
                window.clear()
    acc.print("weights", sum(p.detach().abs().sum().item() for p in net.parameters()), flush=True)


if __name__ == "__main__":
    main()
