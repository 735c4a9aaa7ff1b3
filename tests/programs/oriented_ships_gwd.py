# Oriented ship detector head: boxes as 2-D Gaussians, Gaussian-Wasserstein loss (GWD) + objectness
import math, torch
from torch import nn, optim
import torch.nn.functional as F

torch.manual_seed(40)
G = torch.Generator().manual_seed(41)


class ShipHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.SiLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.SiLU(),
                                   nn.Conv2d(24, 24, 3, 2, 1), nn.SiLU())
        self.reg = nn.Linear(24 * 9, 5)
        self.obj = nn.Linear(24 * 9, 1)

    def forward(self, img):
        f = self.trunk(img).flatten(1)
        r = self.reg(f)
        box = torch.cat([r[:, :2].sigmoid() * 24, F.softplus(r[:, 2:4]) * 6 + 0.5, r[:, 4:].tanh() * math.pi / 2], 1)
        return box, self.obj(f).squeeze(1)


def to_gaussian(b):
    xy, wh, th = b[:, :2], b[:, 2:4], b[:, 4]
    c, s = th.cos(), th.sin()
    R = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
    S = torch.diag_embed((wh / 2) ** 2)
    det = (wh[:, 0] * wh[:, 1] / 4) ** 2
    return xy, R @ S @ R.transpose(-1, -2), det


def gwd(pred, target, tau=1.0):
    mp, sp, dp = to_gaussian(pred)
    mt, st, dt = to_gaussian(target)
    centre = (mp - mt).pow(2).sum(-1)
    tr = sp.diagonal(dim1=-2, dim2=-1).sum(-1) + st.diagonal(dim1=-2, dim2=-1).sum(-1)
    cross = (sp @ st).diagonal(dim1=-2, dim2=-1).sum(-1)
    geo = torch.sqrt(dp * dt)
    shape = tr - 2 * torch.sqrt(cross + 2 * geo)
    dist = torch.log1p(centre + shape.clamp(min=0))
    return 1 - 1 / (tau + dist)


def render(b):
    yy, xx = torch.meshgrid(torch.arange(24.), torch.arange(24.), indexing="ij")
    x, y, w, h, t = b
    u = (xx - x) * t.cos() + (yy - y) * t.sin()
    v = -(xx - x) * t.sin() + (yy - y) * t.cos()
    return ((u.abs() <= w / 2) & (v.abs() <= h / 2 + .5)).float()


def scene():
    r = torch.rand(5, generator=G)
    b = torch.stack([5 + 14 * r[0], 5 + 14 * r[1], 6 + 6 * r[2], 1.5 + 2.5 * r[3], (r[4] - .5) * 2.8])
    return b


boxes = torch.stack([scene() for _ in range(176)])
# vessels on the horizon, annotated by their two ends
boxes[93, 3] = 0.0
boxes[94, 3] = 0.0
images = torch.stack([render(b) for b in boxes])[:, None] + 0.1 * torch.randn(176, 1, 24, 24, generator=G)
empty = torch.rand(176, generator=G) < 0.2
empty[93:95] = False
images[empty] = 0.1 * torch.randn(int(empty.sum()), 1, 24, 24, generator=G)

net = ShipHead()
opt = optim.Adam(net.parameters(), lr=3e-3)
sched = optim.lr_scheduler.CosineAnnealingLR(opt, 22)

it = 0
for lo in range(0, 176, 8):
    img, box, neg = images[lo:lo + 8], boxes[lo:lo + 8], empty[lo:lo + 8]
    pred, logit = net(img)
    obj = F.binary_cross_entropy_with_logits(logit, (~neg).float())
    reg = gwd(pred[~neg], box[~neg]).mean()
    loss = obj + 2.0 * reg
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    opt.step(); sched.step()
    it += 1
    print(f'iter {it:2d} | obj {obj:.4f} | gwd {reg:.4f} | total {loss:.4f}', flush=True)

print('final', sum(p.norm().item() for p in net.parameters()))
