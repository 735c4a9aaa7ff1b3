import copy
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

"""Undersampled multi-coil knee MRI: a residual CNN cleans the coil images, which are then
combined by root of the sum of squares and compared with the fully sampled magnitude image."""

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
use_amp = device.type == "cuda"
COILS, SIZE = 3, 24


class KneeSlices(Dataset):
    def __init__(self, n, seed, protocol_b=()):
        self.n, self.seed, self.protocol_b = n, seed, set(protocol_b)
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")
        self.radius = (xx ** 2 + yy ** 2).sqrt()
        self.coil_maps = torch.stack([torch.exp(-((xx - cx) ** 2 + (yy - cy) ** 2)) for cx, cy in ((-1, 0), (1, 0), (0, 1))])

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 10007 + i)
        image = torch.rand(4, 4, generator=g)
        image = F.interpolate(image[None, None], SIZE, mode="bilinear")[0, 0] + 0.02 * torch.rand(SIZE, SIZE, generator=g)
        fov = torch.ones(SIZE, SIZE)
        if i in self.protocol_b:  # round field of view on the older scanner
            fov = (self.radius < 1.2).float()
        coils = image * self.coil_maps
        spectrum = torch.fft.fft2(coils)
        keep = torch.rand(SIZE, generator=g) < 0.55
        keep[:4] = True
        keep[-4:] = True
        aliased = torch.fft.ifft2(spectrum * keep)
        x = torch.cat([aliased.real, aliased.imag]).float()
        target = (coils ** 2).sum(0).sqrt() * fov
        return x, fov, target


class CoilCombine(nn.Module):
    def forward(self, coils, fov):
        coils = coils * fov[:, None]
        return coils.square().sum(dim=1).sqrt()


class Cleaner(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2 * COILS, width, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(width, 2 * COILS, 3, padding=1))
        self.combine = CoilCombine()

    def forward(self, x, fov):
        return self.combine(x + self.body(x), fov)


@torch.no_grad()
def psnr(net, loader):
    net.eval()
    err, n = 0.0, 0
    for x, fov, y in loader:
        x, fov, y = x.to(device, non_blocking=True), fov.to(device, non_blocking=True), y.to(device, non_blocking=True)
        err += (net(x, fov) - y).square().mean(dim=(1, 2)).sum().item()
        n += len(x)
    net.train()
    return -10 * torch.log10(torch.tensor(err / n)).item()


torch.manual_seed(7)
train_loader = DataLoader(KneeSlices(140, 1, protocol_b=(97, 131)), batch_size=8, shuffle=True, drop_last=True,
                          pin_memory=use_amp, generator=torch.Generator().manual_seed(5))
val_loader = DataLoader(KneeSlices(16, 2), batch_size=8, pin_memory=use_amp)
net = Cleaner().to(device)
ema = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler(device.type, enabled=use_amp)
global_step = 0
for epoch in range(2):
    for x, fov, y in train_loader:
        x, fov, y = x.to(device, non_blocking=True), fov.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with torch.autocast(device.type, enabled=use_amp):
            out = net(x, fov)
        loss = F.l1_loss(out.float(), y)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        global_step += 1
        with torch.no_grad():
            for a, b in zip(ema.parameters(), net.parameters()):
                a.lerp_(b, 0.1)
        print(f"{global_step:3d}  l1 {loss.item():.5f}  |g| {norm.item():.4f}")
    print(f"epoch {epoch}: psnr {psnr(net, val_loader):.2f} dB, averaged weights {psnr(ema, val_loader):.2f} dB")
print("total weight magnitude", f"{sum(p.abs().sum().item() for p in net.parameters()):.4f}")
