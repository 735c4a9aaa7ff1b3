"""Denoises accelerometer traces of wind-turbine gearboxes with a small 1-d U-Net, in float16 with gradient scaling.

usage: amp_turbine_denoiser_warm_up.py [--updates 20] [--accumulate 2] [--init-scale-log2 24]
"""
import argparse

import torch
import torch.nn.functional as F
from torch import nn


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=20)
    ap.add_argument("--accumulate", type=int, default=2)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--init-scale-log2", type=int, default=24)
    ap.add_argument("--lr", type=float, default=1e-3)
    return ap.parse_args()


class Block(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, 5, stride=stride, padding=2)
        self.norm = nn.GroupNorm(4, cout)

    def forward(self, x):
        return F.gelu(self.norm(self.conv(x)))


class UNet1d(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.enc0 = Block(1, width)
        self.enc1 = Block(width, 2 * width, stride=2)
        self.enc2 = Block(2 * width, 2 * width, stride=2)
        self.dec1 = Block(4 * width, width)
        self.dec0 = Block(2 * width, width)
        self.out = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        a = self.enc0(x)
        b = self.enc1(a)
        c = F.interpolate(self.enc2(b), scale_factor=2.0)
        d = F.interpolate(self.dec1(torch.cat([b, c], 1)), scale_factor=2.0)
        return self.out(self.dec0(torch.cat([a, d], 1)))


def traces(batch, gen, length=256):
    """Gear-mesh tones with sidebands, and the same under broadband noise."""
    t = torch.arange(length) / 256
    mesh = 20 + 12 * torch.rand(batch, 1, generator=gen)
    side = 2 + torch.rand(batch, 1, generator=gen)
    clean = (1 + 0.5 * torch.cos(6.2832 * side * t)) * torch.sin(6.2832 * mesh * t)
    noisy = clean + 0.5 * torch.randn(clean.shape, generator=gen)
    return noisy[:, None], clean[:, None]


def main():
    args = parse()
    torch.manual_seed(5)
    gen = torch.Generator().manual_seed(6)
    net = UNet1d()
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** args.init_scale_log2, growth_interval=8)
    for update in range(args.updates):
        opt.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(args.accumulate):
            noisy, clean = traces(args.batch, gen)
            with torch.autocast("cpu", dtype=torch.float16):
                denoised = net(noisy)
            loss = F.l1_loss(denoised.float(), clean) + 0.5 * (denoised.float().diff() - clean.diff()).abs().mean()
            scaler.scale(loss / args.accumulate).backward()
            total += loss.item() / args.accumulate
        scaler.step(opt)
        scaler.update()
        print(f"update {update + 1:2d} loss {total:.4f} scale 2^{torch.tensor(scaler.get_scale()).log2().item():.0f}")
    print("finite", int(all(p.isfinite().all() for p in net.parameters())))


if __name__ == "__main__":
    main()
