"""Self-supervised features of succulents in nursery trays: VICReg with an EMA copy, bfloat16 autocast for the trunk.

The three terms are brought in one after the other (alignment, then variance, then covariance), so the total grows at those steps."""
import copy
import logging
import sys

import torch
import torch.nn.functional as F
from torch import nn

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
log = logging.getLogger("trays")

PHASES = [(1, dict(inv=25.0, var=0.0, cov=0.0)),
          (11, dict(inv=25.0, var=25.0, cov=0.0)),
          (26, dict(inv=25.0, var=25.0, cov=4.0)),
          (38, dict(inv=25.0, var=100.0, cov=40.0))]


def phase(step):
    return [w for start, w in PHASES if start <= step][-1]


def draw_tray(n, gen, size=24):
    """Rosettes: petals in polar coordinates. The camera marks burnt-out pixels with NaN."""
    axis = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    petals = torch.randint(4, 10, (n, 1, 1), generator=gen)
    tilt = 6.28 * torch.rand(n, 1, 1, generator=gen)
    hue = torch.rand(n, 3, 1, 1, generator=gen)
    rosette = (torch.cos(petals * torch.atan2(y, x) + tilt) * torch.exp(-2 * (x * x + y * y)))[:, None]
    image = hue * rosette + 0.05 * torch.randn(n, 3, size, size, generator=gen)
    burnt = torch.rand(n, 1, size, size, generator=gen) < 0.01
    return image.masked_fill(burnt, float("nan"))


def augment(image, gen):
    image = torch.nan_to_num(image, nan=0.0)
    if torch.rand((), generator=gen) < 0.5:
        image = image.flip(-1)
    image = image.rot90(int(torch.randint(4, (), generator=gen)), (-2, -1))
    gain = 0.7 + 0.6 * torch.rand(len(image), 1, 1, 1, generator=gen)
    return image * gain + 0.03 * torch.randn(image.shape, generator=gen)


class Encoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.stem.requires_grad_(False)                   # random filters, frozen as in MoCo v3
        self.trunk = nn.Sequential(nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.expander = nn.Sequential(nn.Linear(128, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, dim))

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            feats = self.trunk(self.stem(x)).flatten(1)
        return self.expander(feats.float())


def terms(a, b):
    inv = F.mse_loss(a, b)
    var = sum(F.relu(1 - torch.sqrt(z.var(0) + 1e-4)).mean() for z in (a, b))
    cov = 0.0
    for z in (a, b):
        z = z - z.mean(0)
        c = z.T @ z / (len(z) - 1)
        cov = cov + (c.pow(2).sum() - c.diagonal().pow(2).sum()) / z.shape[1]
    return inv, var, cov


@torch.no_grad()
def diagnostics(z, ema):
    """How far the nearest other plant is (own distance: inf), and the log volume, -inf while rank is lacking."""
    far = torch.cdist(z, z).fill_diagonal_(float("inf")).amin(1).mean()
    spectrum = torch.linalg.svdvals((z - z.mean(0)).double())
    spectrum[spectrum < 1e-2] = 0.0
    drift = sum((p - q).abs().sum() for p, q in ema)
    return far.item(), spectrum.log().sum().item(), drift.item()


def main():
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(77)
    model = Encoder()
    ema = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9, weight_decay=1e-4)
    for step in range(1, 49):
        weights = phase(step)
        tray = draw_tray(48, gen)
        a, b = model(augment(tray, gen)), model(augment(tray, gen))
        inv, var, cov = terms(a, b)
        # terms with weight zero stay in the graph: all parameters have gradients from the first step
        loss = weights["inv"] * inv + weights["var"] * var + weights["cov"] * cov
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        with torch.no_grad():
            for p, q in zip(ema.parameters(), model.parameters()):
                p.lerp_(q, 0.05)
        far, volume, drift = diagnostics(a, zip(ema.parameters(), model.parameters()))
        log.info("%02d loss %.6f inv %.6f var %.6f cov %.6f | near %.4f volume %.3f drift %.4f",
                 step, loss.item(), inv.item(), var.item(), cov.item(), far, volume, drift)


if __name__ == "__main__":
    main()
