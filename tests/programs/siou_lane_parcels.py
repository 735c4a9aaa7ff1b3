#!/usr/bin/env python
"""One-box detector for parcels on a sorter, SIoU loss (Gevorgyan 2022, without the pi/4 swap)."""
import math, torch
from torch import nn

STRIDE, GRID = 8., 6

def synth(n, g):
    # lanes are 8 px apart and the parcels lie on them
    lane = torch.randint(1, GRID, (n,), generator=g).float() * STRIDE
    cy = 6 + 36 * torch.rand(n, generator=g)
    wh = 9 + 7 * torch.rand(n, 2, generator=g)
    boxes = torch.stack([lane, cy, wh[:, 0], wh[:, 1]], 1)
    ax = torch.arange(48.) + .5
    col = ((ax - lane[:, None]).abs() < wh[:, :1] / 2).float()
    row = ((ax - cy[:, None]).abs() < wh[:, 1:] / 2).float()
    img = row[:, :, None] * col[:, None, :] + .05 * torch.randn(n, 48, 48, generator=g)
    return img[:, None], boxes

class Det(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 4, 4), nn.ELU(), nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ELU())
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, img, cell):
        f = self.head(self.body(img))
        b = torch.arange(len(img))
        raw = f[b, :, cell[:, 1], cell[:, 0]]
        xy = (nn.functional.hardsigmoid(raw[:, :2]) + cell) * STRIDE
        return torch.cat([xy, 12 * torch.exp(.3 * torch.tanh(raw[:, 2:]))], 1)

def siou(p, t):
    p1, p2, t1, t2 = p[:, :2] - p[:, 2:] / 2, p[:, :2] + p[:, 2:] / 2, t[:, :2] - t[:, 2:] / 2, t[:, :2] + t[:, 2:] / 2
    inter = (torch.minimum(p2, t2) - torch.maximum(p1, t1)).clamp(min=0).prod(1)
    iou = inter / (p[:, 2:].prod(1) + t[:, 2:].prod(1) - inter)
    hull = torch.maximum(p2, t2) - torch.minimum(p1, t1)
    d = t[:, :2] - p[:, :2]
    sigma = d.pow(2).sum(1).add(1e-12).sqrt()
    sin_alpha = d[:, 1].abs() / sigma
    angle = torch.cos(2 * torch.asin(sin_alpha) - math.pi / 2)
    rho = (d / hull) ** 2
    dist = (1 - torch.exp(-(2 - angle)[:, None] * rho)).sum(1)
    omega = (p[:, 2:] - t[:, 2:]).abs() / torch.maximum(p[:, 2:], t[:, 2:])
    shape = ((1 - torch.exp(-omega)) ** 4).sum(1)
    return 1 - iou + (dist + shape) / 2

torch.manual_seed(17)
g = torch.Generator().manual_seed(2)
imgs, boxes = synth(48, g)
cells = (boxes[:, :2] / STRIDE).long()
net = Det()
opt = torch.optim.Adam(net.parameters(), lr=4e-3)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1., (k + 1) / 6))
for it in range(40):
    pick = torch.randperm(48)[:24]
    opt.zero_grad()
    loss = siou(net(imgs[pick], cells[pick]), boxes[pick]).mean()
    loss.backward()
    opt.step(); sched.step()
    print("it %d siou %.7f" % (it + 1, float(loss)))
w = torch.cat([q.detach().reshape(-1) for q in net.parameters()])
print("final", float(w.abs().sum()))
