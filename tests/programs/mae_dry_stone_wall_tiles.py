#!/usr/bin/env python
"""Masked autoencoder pre-training on tiles of orthophotos of dry stone walls (He et al. 2021, much smaller)."""
import math

import torch
import torch.nn as nn

PATCH, SIDE, WIDTH, MASK = 4, 32, 48, 0.7


def survey(seed, flights=5):
    """Cuts the strips of each flight to tiles; the last tile of a strip takes what is left over."""
    g = torch.Generator().manual_seed(seed)
    tiles = []
    for f in range(flights):
        length = SIDE * 6 * 6 + (PATCH if f == 2 else 0)
        yy, xx = torch.meshgrid(torch.arange(SIDE).float(), torch.arange(length).float(), indexing="ij")
        strip = torch.sin(xx / 3 + torch.floor(yy / 6) * 2.1) * torch.cos(yy / 2) + 0.2 * torch.randn(SIDE, length, generator=g)
        cuts = list(range(0, length - SIDE + 1, SIDE))
        for c in cuts:
            end = length if c == cuts[-1] else c + SIDE
            tiles.append(strip[:, c:end])
    return tiles


def batches(tiles, size):
    """consecutive tiles of one width"""
    group = []
    for t in tiles:
        if group and (len(group) == size or group[0].shape != t.shape):
            yield torch.stack(group)
            group = []
        group.append(t)
    yield torch.stack(group)


def patchify(img):
    B, H, W = img.shape
    x = img.reshape(B, H // PATCH, PATCH, W // PATCH, PATCH)
    return x.permute(0, 1, 3, 2, 4).reshape(B, -1, PATCH * PATCH)


def block():
    return nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)


class MAE(nn.Module):
    def __init__(self):
        super().__init__()
        n = (SIDE // PATCH) ** 2
        self.embed = nn.Linear(PATCH * PATCH, WIDTH)
        self.pos = nn.Parameter(torch.randn(1, n, WIDTH) * 0.02)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.encoder = nn.ModuleList([block(), block()])
        self.decoder = block()
        self.head = nn.Linear(WIDTH, PATCH * PATCH)

    def forward(self, img):
        target = patchify(img)
        B, N, _ = target.shape
        x = self.embed(target) + self.pos
        order = torch.rand(B, N).argsort(1)
        back = order.argsort(1)
        keep = int(N * (1 - MASK))
        x = torch.gather(x, 1, order[:, :keep, None].expand(-1, -1, WIDTH))
        for layer in self.encoder:
            x = layer(x)
        x = torch.cat([x, self.mask_token.expand(B, N - keep, -1).to(x.dtype)], 1)
        x = torch.gather(x, 1, back[..., None].expand(-1, -1, WIDTH)) + self.pos
        pred = self.head(self.decoder(x)).float()
        mean, var = target.mean(-1, keepdim=True), target.var(-1, keepdim=True)
        target = (target - mean) / (var + 1e-6).sqrt()
        hidden = (back >= keep).float()
        return ((pred - target).square().mean(-1) * hidden).sum() / hidden.sum()


def rate(step, total, base=1.5e-3, warm=5):
    if step < warm:
        return base * (step + 1) / warm
    return base * 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


def main():
    torch.manual_seed(40)
    tiles = survey(40)
    todo = list(batches(tiles, 6))
    model = MAE()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.05)
    for step, img in enumerate(todo):
        for group in opt.param_groups:
            group["lr"] = rate(step, len(todo))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(img)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"[{step + 1}/{len(todo)}] loss {loss.item():.6f}", flush=True)
    print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
