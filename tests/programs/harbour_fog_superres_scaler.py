"""2x super-resolution of fog-camera crops: pixel-shuffle generator, half precision, scaler starts very high."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class ResBlock(nn.Module):
    def __init__(self, width, res_scale=0.2):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.PReLU(width),
                                  nn.Conv2d(width, width, 3, padding=1))
        self.res_scale = res_scale

    def forward(self, x):
        return x + self.res_scale * self.body(x)


class FogSR(nn.Module):
    def __init__(self, width=12, blocks=2):
        super().__init__()
        self.head = nn.Conv2d(1, width, 3, padding=1)
        self.trunk = nn.Sequential(*[ResBlock(width) for _ in range(blocks)])
        self.tail = nn.Sequential(nn.Conv2d(width, 4, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, lr_img):
        up = F.interpolate(lr_img, scale_factor=2, mode="nearest")
        return up + self.tail(self.trunk(self.head(lr_img)))


def scene(gen, n, size):
    """Masts and quay edges, blurred by fog."""
    y, x = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    imgs = []
    for _ in range(n):
        f = 3 + 9 * torch.rand(2, generator=gen)
        ph = 6.28 * torch.rand(2, generator=gen)
        im = 0.5 + 0.25 * torch.sin(f[0] * x * 6 + ph[0]) + 0.25 * torch.sign(torch.sin(f[1] * y * 2 + ph[1]))
        imgs.append(im)
    return torch.stack(imgs).unsqueeze(1)


def charbonnier(a, b, eps=1e-3):
    return ((a - b).float().pow(2) + eps * eps).sqrt().sum() / a.shape[0]


def psnr(a, b):
    # perfect crops give +inf; only printed
    return -10 * torch.log10(F.mse_loss(a.float(), b))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=36)
    ap.add_argument("--crop", type=int, default=16)
    ap.add_argument("--init-scale", type=float, default=2.0 ** 19)
    args = ap.parse_args()

    torch.manual_seed(1971)
    gen = torch.Generator().manual_seed(404)
    net = FogSR()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, betas=(0.9, 0.99))
    scaler = torch.amp.GradScaler("cpu", init_scale=args.init_scale, growth_interval=1000)

    for it in range(1, args.iters + 1):
        hr = scene(gen, 4, args.crop)
        lr_img = F.avg_pool2d(hr, 2)
        if it % 9 == 0:
            # open-sea crops: nothing but fog, the nearest upsampling is already exact
            hr = torch.full_like(hr, 0.5)
            lr_img = F.avg_pool2d(hr, 2)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(lr_img)
        loss = charbonnier(out, hr)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        base = psnr(F.interpolate(lr_img, scale_factor=2), hr)
        print(f"it {it:02d} charbonnier {loss.item():.5f} psnr {psnr(out.detach(), hr).item():.3f} "
              f"nearest {base.item():.3f} scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()
