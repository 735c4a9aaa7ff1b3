"""Sheep detector on drone tiles: one box per tile, L2 on the encoded deltas plus 1 - IoU.
Linear warm-up; as long as the whole run by a slip (epochs times iterations), so the rate only ever rises."""
import torch
from torch import nn


class Config:
    tiles_per_step = 8
    iterations = 40
    warmup_factor = 0.05
    peak_lr = 0.4          # copied from the large-batch recipe (batch 512)
    warmup_epochs = 4
    iters_per_epoch = 10


class Neck(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.LeakyReLU(0.1),
                                  nn.Conv2d(6, 12, 3, stride=2, padding=1), nn.LeakyReLU(0.1))
        self.fc = nn.Linear(12 * 16, 4)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))


def tiles(g, n):
    wh = 3 + 6 * torch.rand(n, 2, generator=g)
    c = 4 + 8 * torch.rand(n, 2, generator=g)
    yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    inside = ((xx - c[:, 0, None, None]).abs() < wh[:, 0, None, None] / 2) & \
             ((yy - c[:, 1, None, None]).abs() < wh[:, 1, None, None] / 2)
    img = inside.float() * 2 - 0.3 + 0.1 * torch.randn(n, 16, 16, generator=g)
    return img.unsqueeze(1), torch.cat([c, wh], 1)


ANCHOR = torch.tensor([8.0, 8.0, 6.0, 6.0])


def encode(box):
    return torch.cat([(box[:, :2] - ANCHOR[:2]) / ANCHOR[2:], torch.log(box[:, 2:] / ANCHOR[2:])], 1)


def decode(delta):
    return torch.cat([ANCHOR[:2] + delta[:, :2] * ANCHOR[2:], ANCHOR[2:] * delta[:, 2:].clamp(-4, 4).exp()], 1)


def iou(a, b):
    lo = torch.maximum(a[:, :2] - a[:, 2:] / 2, b[:, :2] - b[:, 2:] / 2)
    hi = torch.minimum(a[:, :2] + a[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2)
    inter = (hi - lo).clamp_min(0).prod(1)
    return inter / (a[:, 2:].prod(1) + b[:, 2:].prod(1) - inter)


def warmup(cfg):
    total = cfg.warmup_epochs * cfg.iters_per_epoch
    return lambda it: cfg.warmup_factor + (1 - cfg.warmup_factor) * min(1.0, it / total)


def main(cfg=Config):
    torch.manual_seed(44)
    g = torch.Generator().manual_seed(10)
    net = Neck()
    opt = torch.optim.SGD(net.parameters(), lr=cfg.peak_lr, momentum=0.5)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, warmup(cfg))
    for it in range(1, cfg.iterations + 1):
        img, box = tiles(g, cfg.tiles_per_step)
        delta = net(img)
        reg = (delta - encode(box)).square().sum(1).mean()
        overlap = iou(decode(delta), box).mean()
        loss = reg + (1 - overlap)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 35.0)     # as in every config of the zoo
        opt.step()
        sched.step()
        print(f"iter {it:02d} lr {sched.get_last_lr()[0]:.4f} loss {loss.item():.5f} iou {overlap.item():.4f}")
    print("sum of weights", f"{sum(p.detach().sum().item() for p in net.parameters()):.4f}")


if __name__ == "__main__":
    main()
