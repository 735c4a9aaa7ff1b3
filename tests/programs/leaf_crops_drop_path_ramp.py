"""Small ViT (layer scale + stochastic depth) on 16x16 crops of leaves: healthy, rust, mildew, scab."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

DEPTH, DIM, HEADS, PATCH = 4, 32, 4, 4
STEPS, RAMP = 36, 16


def make_crops(n, g):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    label = torch.randint(0, 4, (n,), generator=g)
    img = torch.rand(n, 3, 16, 16, generator=g) * 0.2
    img[:, 1] += 0.5 * torch.exp(-(yy / 0.8) ** 2)
    for i in range(n):
        cx, cy = (torch.rand(2, generator=g) - 0.5).tolist()
        spot = torch.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / 0.08)
        if label[i] == 1:
            img[i, 0] += 0.6 * spot
        elif label[i] == 2:
            img[i] += 0.5 * spot
        elif label[i] == 3:
            img[i] -= 0.4 * spot
    return img - 0.3, label


class DropPath(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = 0.0

    def forward(self, x):
        if not self.training or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        mask = torch.empty(x.shape[0], 1, 1).bernoulli_(keep)
        mask = mask / keep
        return x * mask


class Block(nn.Module):
    def __init__(self, dim, heads, init=0.1):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.gamma1 = nn.Parameter(torch.full((dim,), init))
        self.gamma2 = nn.Parameter(torch.full((dim,), init))
        self.drop_attn, self.drop_mlp = DropPath(), DropPath()

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.drop_attn(self.gamma1 * self.attn(h, h, h, need_weights=False)[0])
        return x + self.drop_mlp(self.gamma2 * self.mlp(self.norm2(x)))


class LeafViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos = nn.Parameter(torch.randn(1, 17, DIM) * 0.02)
        self.blocks = nn.ModuleList(Block(DIM, HEADS) for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 4)

    def forward(self, img):
        x = self.embed(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x)[:, 0])


def set_depth_rates(model, step):
    top = min(1.0, step / RAMP)
    for blk, rate in zip(model.blocks, torch.linspace(0.0, top, DEPTH).tolist()):
        blk.drop_attn.rate = blk.drop_mlp.rate = rate
    return top


def train():
    torch.manual_seed(11)
    g = torch.Generator().manual_seed(5)
    model = LeafViT()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 0.5 * (1 + math.cos(math.pi * s / STEPS)))
    for step in range(1, STEPS + 1):
        top = set_depth_rates(model, step)
        img, label = make_crops(32, g)
        loss = F.cross_entropy(model(img), label, label_smoothing=0.05)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        print(f"step {step:2d}  depth rate {top:.3f}  loss {loss.item():.4f}")
    print("sum of squared weights", sum(p.pow(2).sum().item() for p in model.parameters()))


if __name__ == "__main__":
    train()
