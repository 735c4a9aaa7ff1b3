#!/usr/bin/env python
"""Signed distance to the walls of a grotto slice, by a coordinate MLP with octave encodings (coarse to fine).

Mixed precision: the encodings are kept in half precision because they are by far the largest tensor of the run.
"""
import logging
import math
import sys

import torch
import torch.nn as nn

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
log = logging.getLogger("grotto")

STEPS = 46
RAYS = 256
MAX_OCTAVES = 20


def wall_distance(p):
    """Analytic 'ground truth': two merged chambers with scalloped walls."""
    a = (p - torch.tensor([-0.3, 0.1])).norm(dim=-1) - 0.45
    b = (p - torch.tensor([0.4, -0.2])).norm(dim=-1) - 0.35
    scallops = 0.03 * torch.sin(18 * p[:, 0]) * torch.cos(14 * p[:, 1])
    return torch.minimum(a, b) + scallops


class OctaveEncoding(nn.Module):
    """sin and cos of 2^k pi x; the newest octave is faded in with a raised cosine."""

    def __init__(self, octaves):
        super().__init__()
        self.octaves = octaves

    def forward(self, x, alpha):
        x = x.half()
        feats = [x]
        for k in range(self.octaves):
            w = 0.5 * (1 - math.cos(math.pi * min(max(alpha - k, 0.0), 1.0)))
            if w == 0.0:
                feats += [torch.zeros_like(x), torch.zeros_like(x)]
                continue
            angle = x * (2.0 ** k * math.pi)
            feats += [w * torch.sin(angle), w * torch.cos(angle)]
        return torch.cat(feats, dim=-1)


class GrottoField(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.encode = OctaveEncoding(MAX_OCTAVES)
        self.first = nn.Linear(2 + 4 * MAX_OCTAVES, width)
        self.second = nn.Linear(width + 2, width)
        self.head = nn.Linear(width, 1)

    def forward(self, x, alpha):
        h = torch.relu(self.first(self.encode(x, alpha)))
        h = torch.relu(self.second(torch.cat([h, x.to(h.dtype)], dim=-1)))
        return self.head(h).squeeze(-1)


def bands_at(step):
    return 0.5 + 0.5 * step        # half an octave per step


def run():
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(2026)
    field = GrottoField()
    opt = torch.optim.Adam(field.parameters(), lr=3e-3, betas=(0.9, 0.99))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for step in range(1, STEPS + 1):
        pts = torch.rand(RAYS, 2, generator=gen) * 2 - 1
        target = wall_distance(pts)
        with torch.autocast("cpu", dtype=torch.float16):
            pred = field(pts, bands_at(step))
        loss = (pred.float() - target).abs().mean()
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        log.info("step %02d alpha %.1f l1 %.8f", step, bands_at(step), loss.item())
        sys.stdout.flush()
    log.info("%.6f", sum(p.detach().abs().sum().item() for p in field.parameters()))


if __name__ == "__main__":
    run()
