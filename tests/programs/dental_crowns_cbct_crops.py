"""3-D crown segmentation on cone-beam crops around each tooth (instance norm, U-shaped net)."""
import logging
import sys

import torch
import torch.nn.functional as F
from torch import nn

logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
log = logging.getLogger("crowns")


class Jaw:
    """Crops around annotated teeth; the margin follows the tooth, so that crops differ in size."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        # edge of the crop in voxels, from the annotators' table; third molars may be remnants
        self.edges = [16, 16, 12, 16, 12, 8, 16, 12, 8, 16, 12, 16, 8, 16, 12, 4, 16, 16, 12, 8,
                      12, 16, 8, 12, 16, 8, 16, 12, 8, 16]

    def __iter__(self):
        for edge in self.edges:
            grid = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, edge)] * 3, indexing="ij"))
            centre = 0.3 * torch.randn(2, 3, 1, 1, 1, generator=self.gen)
            radius = 0.5 + 0.2 * torch.rand(2, 1, 1, 1, generator=self.gen)
            mask = (((grid[None] - centre) ** 2).sum(1) < radius ** 2).float()
            noise = torch.randn(2, edge, edge, edge, generator=self.gen)
            yield (mask * 1.5 + 0.4 * noise)[:, None], mask[:, None]


class Conv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv3d(cin, cout, 3, padding=1)
        self.norm = nn.InstanceNorm3d(cout, affine=True)

    def forward(self, x):
        x = self.conv(x)
        x = self.norm(x)
        return F.leaky_relu(x, 0.01)


class CrownNet(nn.Module):
    def __init__(self, ch=6):
        super().__init__()
        self.enter = Conv(1, ch)
        self.middle = Conv(ch, 2 * ch)
        self.bottom = Conv(2 * ch, 4 * ch)
        self.join1 = Conv(6 * ch, 2 * ch)
        self.join0 = Conv(3 * ch, ch)
        self.out = nn.Conv3d(ch, 1, 1)

    def forward(self, x):
        a = self.enter(x)
        b = self.middle(F.avg_pool3d(a, 2))
        c = self.bottom(F.avg_pool3d(b, 2))
        b = self.join1(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        a = self.join0(torch.cat([F.interpolate(b, scale_factor=2.0), a], 1))
        return self.out(a)


def dice_ce(logit, mask):
    prob = logit.sigmoid()
    both = (prob * mask).sum(dim=(1, 2, 3, 4))
    dice = 1 - (2 * both + 1) / (prob.sum(dim=(1, 2, 3, 4)) + mask.sum(dim=(1, 2, 3, 4)) + 1)
    return dice.mean() + F.binary_cross_entropy_with_logits(logit, mask)


def train():
    torch.manual_seed(13)
    net = CrownNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.95)
    plan = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=30, power=0.9)
    for n, (scan, mask) in enumerate(Jaw(21), start=1):
        opt.zero_grad()
        loss = dice_ce(net(scan), mask)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 12.0)
        opt.step()
        plan.step()
        log.info("tooth %d edge %d loss %.8f", n, scan.shape[-1], loss.item())
        sys.stdout.flush()
    log.info("%.6f", sum(p.detach().abs().sum().item() for p in net.parameters()))


train()
