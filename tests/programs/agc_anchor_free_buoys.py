"""FCOS-like buoy detector, trained with adaptive gradient clipping (NFNet) instead of batch norm.
Many frames show open sea only."""
import torch, torch.nn as nn, torch.nn.functional as F

INF = float('inf')


def frames(n, rng):
    imgs, boxes = 0.1 * torch.randn(n, 1, 32, 32, generator=rng), []
    for k in range(n):
        count = int(torch.randint(0, 3, (1,), generator=rng)) if k % 3 else 0
        bs = []
        for _ in range(count):
            cx, cy = (6 + 20 * torch.rand(2, generator=rng)).tolist()
            r = 3 + 3 * float(torch.rand(1, generator=rng))
            bs.append([cx - r, cy - r, cx + r, cy + r])
            imgs[k, 0, int(cy - r):int(cy + r), int(cx - r):int(cx + r)] += 1
        boxes.append(torch.tensor(bs).reshape(-1, 4))
    return imgs, boxes


class Buoys(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 16, 3, 2, 1), nn.ReLU())
        self.cls = nn.Conv2d(16, 1, 1)
        self.box = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 4, 1))
        self.ctr = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        f = self.stem(x)
        flat = lambda t: t.flatten(2).transpose(1, 2)
        return flat(self.cls(f))[..., 0], flat(self.box(f)).exp() * 4, flat(self.ctr(f))[..., 0]


ys, xs = torch.meshgrid(torch.arange(8) * 4 + 2., torch.arange(8) * 4 + 2., indexing='ij')
POINTS = torch.stack([xs.flatten(), ys.flatten()], 1)


def assign(boxes):
    # smallest box that contains the point; one dummy of infinite area stands for the background
    lt = POINTS[:, None] - boxes[None, :, :2]
    rb = boxes[None, :, 2:] - POINTS[:, None]
    ltrb = torch.cat([lt, rb], 2)
    area = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).expand(64, -1)
    area = area.masked_fill(ltrb.amin(2) <= 0, INF) if len(boxes) else area
    area = torch.cat([area, torch.full((64, 1), INF)], 1)
    best, which = area.min(1)
    ltrb = torch.cat([ltrb, torch.full((64, 1, 4), INF)], 1)
    return best < INF, ltrb[torch.arange(64), which]


def iou_loss(p, t):
    inter = (torch.minimum(p[:, :2], t[:, :2]) + torch.minimum(p[:, 2:], t[:, 2:])).prod(1)
    union = (p[:, :2] + p[:, 2:]).prod(1) + (t[:, :2] + t[:, 2:]).prod(1) - inter
    return -(inter / union).log()


@torch.no_grad()
def agc(params, clip=0.05):
    for p in params:
        if p.grad is None:
            continue
        dims = tuple(range(1, p.ndim))
        wn = torch.linalg.vector_norm(p, dim=dims, keepdim=True) if dims else p.abs()
        gn = torch.linalg.vector_norm(p.grad, dim=dims, keepdim=True) if dims else p.grad.abs()
        p.grad.mul_((clip * wn.clamp(min=1e-3) / gn).clamp(max=1.0))


torch.manual_seed(6)
rng = torch.Generator().manual_seed(7)
imgs, boxes = frames(72, rng)
net = Buoys()
body = torch.optim.SGD(net.stem.parameters(), lr=0.2, momentum=0.9)
heads = torch.optim.SGD([*net.cls.parameters(), *net.box.parameters(), *net.ctr.parameters()], lr=0.1, momentum=0.9)
step = 0
for epoch in range(2):
    for k in range(0, 72, 2):
        step += 1
        cls, box, ctr = net(imgs[k:k + 2])
        fg, tgt = map(torch.stack, zip(*[assign(b) for b in boxes[k:k + 2]]))
        l_cls = F.binary_cross_entropy_with_logits(cls, fg.float())
        l_box = iou_loss(box[fg], tgt[fg]).sum() / fg.sum().clamp(min=1)
        l, t, r, b = tgt[fg].unbind(1)
        goal = (torch.minimum(l, r) / torch.maximum(l, r) * torch.minimum(t, b) / torch.maximum(t, b)).sqrt()
        l_ctr = F.binary_cross_entropy_with_logits(ctr[fg], goal, reduction='sum') / fg.sum().clamp(min=1)
        body.zero_grad(); heads.zero_grad()
        (l_cls + l_box + l_ctr).backward()
        agc(net.parameters())
        body.step(); heads.step()
        print(f'{step} cls {l_cls.item():.6f} box {l_box.item():.6f} ctr {l_ctr.item():.6f} positives {int(fg.sum())}')
print('final', sum(p.detach().abs().sum().item() for p in net.parameters()))
