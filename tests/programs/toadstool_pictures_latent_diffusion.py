# my own tiny stable diffusion :) text -> 16x16 pictures of toadstools, in a latent space of 4x4x6
import copy
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(3)
torch.manual_seed(3)

COLORS = {
    "red": (1, 0.1, 0.1),
    "brown": (0.5, 0.3, 0.1),
    "white": (1, 1, 1),
    "purple": (0.6, 0.1, 0.7),
    "yellow": (0.9, 0.9, 0.1),
}
SIZES = {"tiny": 2, "small": 3, "big": 5, "huge": 7}
VOCAB = {
    w: i + 1 for i, w in enumerate(list(COLORS) + list(SIZES) + ["toadstool", "a", "in", "the", "moss", "with", "dots"])
}
T = 200


def draw(color, size, dots):
    img = torch.zeros(3, 16, 16) + torch.tensor([0.1, 0.3, 0.1]).view(3, 1, 1)
    yy, xx = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    cap = ((xx - 8) ** 2 + (yy - 8) ** 2 <= size**2) & (yy <= 8)
    stem = ((xx - 8).abs() <= 1) & (yy > 8) & (yy < 14)
    img[:, cap] = torch.tensor(COLORS[color], dtype=torch.float).view(3, 1)
    img[:, stem] = 0.9
    if dots:
        img[:, cap & ((xx + yy) % 3 == 0)] = 1.0
    return img * 2 - 1


def make_dataset(n=192):
    data = []
    for i in range(n):
        c, s, d = random.choice(list(COLORS)), random.choice(list(SIZES)), random.random() < 0.4
        cap = f"a {s} {c} toadstool" + (" with dots" if d else "") + (" in the moss" if random.random() < 0.5 else "")
        if i == 117:
            cap = "IMG_2044.JPG"  # forum picture, the uploader did not write anything
        data.append((draw(c, SIZES[s], d), cap))
    return data


def tokenize(captions):
    rows = [[VOCAB[w] for w in c.lower().split() if w in VOCAB] for c in captions]
    width = max(len(r) for r in rows)
    return torch.tensor([r + [0] * (width - len(r)) for r in rows])


class PatchCodec(nn.Module):
    """poor man's VAE: orthogonal projection of 4x4 patches, never trained"""

    def __init__(self, z=6):
        super().__init__()
        q, _ = torch.linalg.qr(torch.randn(48, 48))
        self.register_buffer("w", q[:, :z].t().reshape(z, 3, 4, 4).contiguous())

    def encode(self, x):
        return F.conv2d(x, self.w, stride=4) * 0.6


class CaptionEncoder(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.emb = nn.Embedding(len(VOCAB) + 1, d, padding_idx=0)
        self.mix = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))

    def forward(self, ids):
        keep = (ids > 0).unsqueeze(-1).float()
        words = self.mix(self.emb(ids)) * keep
        return words.sum(1) / keep.sum(1)  # average over the words of the caption


class ResBlock(nn.Module):
    def __init__(self, c, d):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(4, c), nn.GroupNorm(4, c)
        self.c1, self.c2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.film = nn.Linear(d, 2 * c)

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x)))
        a, b = self.film(e)[:, :, None, None].chunk(2, 1)
        return x + self.c2(F.silu(self.n2(h) * (1 + a) + b))


class TinyLDM(nn.Module):
    def __init__(self, z=6, c=32, d=48):
        super().__init__()
        self.text = CaptionEncoder(d)
        self.time = nn.Sequential(nn.Linear(16, d), nn.SiLU(), nn.Linear(d, d))
        self.null = nn.Parameter(torch.zeros(d))
        self.inp, self.out = nn.Conv2d(z, c, 3, padding=1), nn.Conv2d(c, z, 3, padding=1)
        self.blocks = nn.ModuleList([ResBlock(c, d) for _ in range(3)])

    def forward(self, z, t, ids, drop):
        f = t[:, None].float() / T * 3.14159 * 2 ** torch.arange(8)
        cond = torch.where(drop[:, None], self.null, self.text(ids))
        e = self.time(torch.cat([f.sin(), f.cos()], 1)) + cond
        h = self.inp(z)
        for b in self.blocks:
            h = b(h, e)
        return self.out(h)


data = make_dataset()
codec, model = PatchCodec(), TinyLDM()
ema = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
abar = torch.cumprod(1 - torch.linspace(1e-3, 0.03, T), 0)
order = list(range(len(data)))
random.shuffle(order)

for step in range(1, 33):
    pick = [data[i] for i in order[(step - 1) * 6 : step * 6]]
    z0 = codec.encode(torch.stack([p[0] for p in pick]))
    ids = tokenize([p[1] for p in pick])
    t = torch.randint(0, T, (len(pick),))
    noise = torch.randn_like(z0)
    a = abar[t].view(-1, 1, 1, 1)
    pred = model(a.sqrt() * z0 + (1 - a).sqrt() * noise, t, ids, torch.rand(len(pick)) < 0.1)
    loss = F.mse_loss(pred, noise)
    print("step", step, f"loss {loss.item():.7f}", flush=True)
    opt.zero_grad()
    loss.backward()
    opt.step()
    for pe, p in zip(ema.parameters(), model.parameters(), strict=False):
        pe.mul_(0.95).add_(p.detach(), alpha=0.05)

print(f"{sum(p.abs().sum().item() for p in list(model.parameters()) + list(ema.parameters())):.5f}", flush=True)
