"""BYOL on 16x16 photos of beach pebbles, float16 autocast on the CPU with a loss scaler."""
import copy
import logging
import sys

import torch
from torch import nn
import torch.nn.functional as F

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
log = logging.getLogger("pebbles")

STEPS = 36
BATCH = 24


def photograph(gen, n):
    """Ellipses with a tilt, an albedo and veins on sand."""
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    a = 0.4 + 0.4 * torch.rand(n, 1, 1, generator=gen)
    b = 0.3 + 0.3 * torch.rand(n, 1, 1, generator=gen)
    tilt = 3.14 * torch.rand(n, 1, 1, generator=gen)
    u = xx * tilt.cos() + yy * tilt.sin()
    v = -xx * tilt.sin() + yy * tilt.cos()
    body = ((u / a) ** 2 + (v / b) ** 2 < 1).float()
    vein = (torch.sin(9 * u * torch.rand(n, 1, 1, generator=gen)) > 0.8).float() * 0.4
    albedo = torch.rand(n, 3, 1, 1, generator=gen)
    sand = 0.1 * torch.randn(n, 3, 16, 16, generator=gen) + 0.5
    return torch.where(body[:, None] > 0, albedo + vein[:, None], sand), (a > 0.6).long().flatten()


def augment(gen, x):
    if torch.rand(1, generator=gen).item() < 0.5:
        x = x.flip(-1)
    dy, dx = torch.randint(-2, 3, (2,), generator=gen).tolist()
    x = torch.roll(x, (dy, dx), (-2, -1))
    return x * (0.8 + 0.4 * torch.rand(len(x), 1, 1, 1, generator=gen)) + 0.05 * torch.randn(x.shape, generator=gen)


class Encoder(nn.Module):
    def __init__(self, width=48, dim=24):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.mix = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.project = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, dim))

    def features(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2)
        return (h + self.mix(h)).mean(1)

    def forward(self, x):
        return self.project(self.features(x))


class Byol(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = Encoder()
        self.predictor = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def one_side(self, a, b):
        p = F.normalize(self.predictor(self.online(a)).float(), dim=-1)
        with torch.no_grad():
            z = F.normalize(self.target(b).float(), dim=-1)
        return -2 * (p * z).sum(-1).mean()

    def forward(self, a, b):
        return self.one_side(a, b) + self.one_side(b, a)

    @torch.no_grad()
    def follow(self, tau):
        for t, o in zip(self.target.parameters(), self.online.parameters()):
            t.lerp_(o, 1 - tau)


def nearest_neighbour_hits(model, bank, labels):
    """Only pebbles of an already known size class can be scored: none of them at the start."""
    with torch.no_grad():
        f = F.normalize(model.online.features(bank), dim=-1)
    known = labels[labels >= 0]
    sim = (f @ f.T).fill_diagonal_(float("-inf"))
    guess = labels[sim.argmax(-1)]
    return (guess[labels >= 0] == known).float().mean().item()        # nan while nothing is labelled


def main():
    torch.manual_seed(21)
    gen = torch.Generator().manual_seed(99)
    bank, sizes = photograph(gen, 64)
    labels = torch.full_like(sizes, -1)
    model = Byol()
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 20, growth_interval=12)
    for step in range(1, STEPS + 1):
        x, _ = photograph(gen, BATCH)
        a, b = augment(gen, x), augment(gen, x)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(a, b)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        model.follow(0.96)
        if step > 12:
            labels[:2 * (step - 12)] = sizes[:2 * (step - 12)]
        hits = nearest_neighbour_hits(model, bank, labels)
        log.info("step %2d loss %+.6f scale %g hits %.3f", step, loss.item(), scaler.get_scale(), hits)
        sys.stdout.flush()
    log.info("%.6f", sum(p.abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
