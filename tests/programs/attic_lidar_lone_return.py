# Monocular depth in attics. Ground truth is a sparse lidar: most pixels have no return.
# Scale-invariant log loss (Eigen et al.), lambda = 1 as we only want relative depth, sqrt as in BTS.
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2014)
torch.set_num_threads(1)

H, W = 12, 16


class DepthHead(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, f):
        return 10.0 * torch.sigmoid(self.conv(f)) + 0.1     # metres


class AtticDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc1 = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.enc2 = nn.Conv2d(8, 12, 3, padding=1)
        self.dec = nn.Conv2d(12 + 3, 8, 3, padding=1)
        self.head = DepthHead(8)

    def forward(self, img):
        f = F.elu(self.enc2(F.elu(self.enc1(img))))
        f = F.interpolate(f, size=img.shape[-2:], mode="bilinear", align_corners=False)
        return self.head(F.elu(self.dec(torch.cat([f, img], 1))))


class SILog(nn.Module):
    def __init__(self, lam=1.0, alpha=10.0):
        super().__init__()
        self.lam, self.alpha = lam, alpha

    def forward(self, pred, gt):
        mask = gt > 0
        if not mask.any():
            return None                     # no return at all: the caller skips the frame
        d = torch.log(pred[mask]) - torch.log(gt[mask])
        spread = (d ** 2).mean() - self.lam * d.mean() ** 2
        return self.alpha * torch.sqrt(spread)


def frames(n, seed=9):
    """(image, lidar): returns get rare in the corners behind the chimney"""
    g = torch.Generator().manual_seed(seed)
    for i in range(n):
        slope = 0.5 + 2 * torch.rand(1, generator=g)
        yy, xx = torch.meshgrid(torch.linspace(0, 1, H), torch.linspace(-1, 1, W), indexing="ij")
        depth = 1.5 + slope * yy + 1.5 * xx.abs()
        img = torch.stack([1 / depth, yy, xx]) + 0.02 * torch.randn(3, H, W, generator=g)
        hit = torch.rand(H, W, generator=g) < 0.15
        if i == 30:         # lens cap on: soot eats the beam, nothing comes back
            hit[:] = False
        if i == 16:         # pointing into the chimney: a single return
            hit[:] = False
            hit[7, 5] = True
        yield img.unsqueeze(0), (depth * hit)[None, None]


net = AtticDepth()
criterion = SILog()
optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
sched = torch.optim.lr_scheduler.StepLR(optimizer, 15, gamma=0.5)

k = 0
for img, lidar in frames(34):
    loss = criterion(net(img), lidar)
    if loss is None:
        continue
    k += 1
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sched.step()
    print(f"[{k:02d}] silog {loss.item():.6f} returns {int((lidar > 0).sum())}")

print("weights", f"{sum(p.detach().sum() for p in net.parameters()).item():.5f}")
