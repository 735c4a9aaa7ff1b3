"""Anchor-free detector of parked cars: distances to the four sides, IoU loss, centre-ness. Backbone and heads have
their own optimizers."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    size: int = 64
    stride: int = 8
    batch: int = 6
    steps: int = 34
    boxes: int = 3
    lr_backbone: float = 0.01
    lr_heads: float = 2e-3
    crop_from: int = 12          # from this step on some pictures are shifted and cropped
    seed: int = 404


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        def conv(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.GroupNorm(4, o), nn.SiLU())
        self.backbone = nn.Sequential(conv(1, 16), conv(16, 32), conv(32, 32))
        self.cls = nn.Conv2d(32, 1, 3, padding=1)
        self.reg = nn.Conv2d(32, 4, 3, padding=1)
        self.ctr = nn.Conv2d(32, 1, 3, padding=1)
        nn.init.constant_(self.cls.bias, -2.0)

    def forward(self, x):
        f = self.backbone(x)
        return self.cls(f).flatten(1), self.reg(f).flatten(2).transpose(1, 2).clamp(max=5).exp(), self.ctr(f).flatten(1)


def street(cfg, gen, step):
    n = cfg.batch
    wh = torch.randint(2, 5, (n, cfg.boxes, 2), generator=gen) * 4
    xy = torch.randint(0, 11, (n, cfg.boxes, 2), generator=gen) * 4 + 4
    boxes = torch.cat([xy, xy + wh], -1).float()
    if step >= cfg.crop_from:
        moved = (torch.rand(n, 1, 1, generator=gen) < 0.25).float()
        shift = torch.randint(-5, 6, (n, 1, 2), generator=gen).float() * 4 * moved
        boxes = boxes - torch.cat([shift, shift], -1)
    boxes = boxes.clamp(0, cfg.size - 4)
    # what fell out of the picture has no extent in either direction
    valid = (boxes[..., 2] > boxes[..., 0]) | (boxes[..., 3] > boxes[..., 1])
    image = 0.3 * torch.randn(n, 1, cfg.size, cfg.size, generator=gen)
    for i in range(n):
        for x0, y0, x1, y1 in boxes[i].long().tolist():
            image[i, 0, y0:y1, x0:x1] += 1.0
    return image, boxes, valid


def grid(cfg):
    c = torch.arange(0, cfg.size, cfg.stride).float() + cfg.stride / 2
    y, x = torch.meshgrid(c, c, indexing="ij")
    return torch.stack([x.reshape(-1), y.reshape(-1)], -1)


@torch.no_grad()
def assign(points, boxes, valid):
    """Smallest box that holds the point. Returns distances, the mask of positives and centre-ness."""
    lt = points[None, :, None] - boxes[:, None, :, :2]
    rb = boxes[:, None, :, 2:] - points[None, :, None]
    ltrb = torch.cat([lt, rb], -1)
    inside = (ltrb.amin(-1) >= 0) & valid[:, None]
    area = (boxes[..., 2:] - boxes[..., :2]).prod(-1)[:, None].expand_as(inside)
    area = torch.where(inside, area, torch.full_like(area, 1e8))
    best, index = area.min(-1)
    dist = ltrb.gather(2, index[..., None, None].expand(-1, -1, 1, 4)).squeeze(2)
    pos = best < 1e8
    d = dist[pos]
    across = d[:, [0, 2]].amin(1) / d[:, [0, 2]].amax(1)
    along = d[:, [1, 3]].amin(1) / d[:, [1, 3]].amax(1)
    return d, pos, (across * along).sqrt()


def giou_loss(p, t, weight):
    iw = torch.minimum(p[:, 0], t[:, 0]) + torch.minimum(p[:, 2], t[:, 2])
    ih = torch.minimum(p[:, 1], t[:, 1]) + torch.minimum(p[:, 3], t[:, 3])
    ew = torch.maximum(p[:, 0], t[:, 0]) + torch.maximum(p[:, 2], t[:, 2])
    eh = torch.maximum(p[:, 1], t[:, 1]) + torch.maximum(p[:, 3], t[:, 3])
    inter = iw * ih
    union = (p[:, 0] + p[:, 2]) * (p[:, 1] + p[:, 3]) + (t[:, 0] + t[:, 2]) * (t[:, 1] + t[:, 3]) - inter
    hull = ew * eh
    loss = 1 - inter / union + (hull - union) / hull
    return (loss * weight).sum() / weight.sum().clamp(min=1e-6)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    net = Detector()
    heads = [p for n, p in net.named_parameters() if not n.startswith("backbone")]
    opts = [torch.optim.SGD(net.backbone.parameters(), cfg.lr_backbone, momentum=0.9),
            torch.optim.AdamW(heads, cfg.lr_heads)]
    points = grid(cfg)
    for step in range(1, cfg.steps + 1):
        image, boxes, valid = street(cfg, gen, step)
        cls, reg, ctr = net(image)
        d, pos, centre = assign(points, boxes, valid)
        l_cls = F.binary_cross_entropy_with_logits(cls, pos.float())
        l_box = giou_loss(reg[pos] * cfg.stride, d, centre)
        l_ctr = F.binary_cross_entropy_with_logits(ctr[pos], centre)
        loss = l_cls + l_box + l_ctr
        for o in opts:
            o.zero_grad()
        loss.backward()
        for o in opts:
            o.step()
        print(f"step={step} cls={l_cls.item():.5f} box={l_box.item():.5f} ctr={l_ctr.item():.5f} pos={int(pos.sum())}", flush=True)
    print(sum(float(p.detach().abs().sum()) for p in net.parameters()), flush=True)


main()
