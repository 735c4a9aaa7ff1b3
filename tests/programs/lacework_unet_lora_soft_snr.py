"""Low-rank adaptation of a little denoising UNet to pictures of lace. The base is frozen; weights are soft-min-SNR;
noise levels are opened up from the noisy end (coarse shapes first, threads later)."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(606)
RNG = torch.Generator().manual_seed(607)
T, GAMMA, STEPS, BATCH, OPEN = 100, 5.0, 40, 8, 26


class LoraConv(nn.Module):
    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Conv2d(base.in_channels, rank, base.kernel_size, base.stride, base.padding, bias=False)
        self.up = nn.Conv2d(rank, base.out_channels, 1, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


class Stage(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.norm = nn.GroupNorm(4, cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.time = nn.Linear(16, cout)

    def forward(self, x, emb):
        h = F.silu(self.norm(self.conv1(x)) + self.time(emb)[:, :, None, None])
        return F.silu(self.conv2(h))


class TinyUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Stage(1, 16)
        self.mid = Stage(16, 32)
        self.outer = Stage(48, 16)
        self.last = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x, t):
        f = torch.exp(-math.log(1000) * torch.arange(8) / 8)
        emb = torch.cat([torch.sin(t[:, None] * f), torch.cos(t[:, None] * f)], 1)
        a = checkpoint(self.inner, x, emb, use_reentrant=False)
        b = checkpoint(self.mid, F.avg_pool2d(a, 2), emb, use_reentrant=False)
        c = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.last(self.outer(torch.cat([a, c], 1), emb))


def adapt(module):
    for name, child in module.named_children():
        if isinstance(child, nn.Conv2d) and child.kernel_size == (3, 3):
            setattr(module, name, LoraConv(child))
        else:
            adapt(child)


def alpha_bar(t):
    f = lambda u: torch.cos((u / T + 0.008) / 1.008 * math.pi / 2) ** 2
    return f(t.float()) / f(torch.zeros(()))


def soft_min_snr(t):
    a = alpha_bar(t)
    snr = a / (1 - a)
    return snr * GAMMA / (snr + GAMMA)


def lace(n):
    k = torch.rand(n, 2, 1, 1, generator=RNG) * 3 + 1
    y = torch.linspace(-3, 3, 16)[None, :, None]
    x = torch.linspace(-3, 3, 16)[None, None, :]
    net = torch.sin(k[:, 0] * (x + y)) * torch.sin(k[:, 1] * (x - y))
    return torch.tanh(3 * net)[:, None]


def levels(step, n):
    """One level out of each of n strata, so that a batch always covers the whole of the opened range."""
    low = max(0, int(T * 0.7 * (1 - step / OPEN)))
    edge = torch.linspace(low, T - 1, n + 1)[:-1]
    jitter = torch.rand(n, generator=RNG) * (T - 1 - low) / n
    jitter[0] = 0                                  # the finest level that is open always takes part
    return (edge + jitter).long()


net = TinyUNet()
for p in net.parameters():
    p.requires_grad_(False)
adapt(net)
train = [p for p in net.parameters() if p.requires_grad]
opt = torch.optim.AdamW(train, lr=4e-3)
for step in range(1, STEPS + 1):
    x0 = lace(BATCH)
    t = levels(step, BATCH)
    eps = torch.randn(x0.shape, generator=RNG)
    ab = alpha_bar(t)[:, None, None, None]
    noisy = ab.sqrt() * x0 + (1 - ab).sqrt() * eps
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pred = net(noisy, t.float())
    per = ((pred.float() - x0) ** 2).mean((1, 2, 3))
    loss = (soft_min_snr(t) * per).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(train, 1.0)
    opt.step()
    print(f"[{step}/{STEPS}] finest {int(t.min())} loss {loss.item():.6f}", flush=True)
print("adapter", sum(p.detach().abs().sum().item() for p in train), flush=True)
