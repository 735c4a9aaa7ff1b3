import math
import torch
import torch.nn as nn
from torch.nn import functional as F

# ViT for small data sets (Lee et al. 2021): locality self-attention = learned temperature + no
# attention to oneself. Combined with PatchDropout, where ever fewer patches are kept (faster!).
# No class token; mean over tokens.


class LSA(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.temperature = nn.Parameter(torch.tensor(math.log((dim // heads) ** -0.5)))
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dots = q @ k.transpose(-1, -2) * self.temperature.exp()
        diag = torch.eye(n, dtype=torch.bool, device=x.device)
        dots = dots.masked_fill(diag, float("-inf"))
        attn = F.softmax(dots, dim=-1)
        return self.to_out((attn @ v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = LSA(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class SmallViT(nn.Module):
    def __init__(self, dim=32, depth=2, classes=5):
        super().__init__()
        self.patchify = nn.Conv2d(1, dim, 4, 4)
        self.pos = nn.Parameter(torch.randn(1, 16, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, img, keep):
        x = self.patchify(img).flatten(2).transpose(1, 2) + self.pos
        if self.training and keep < x.size(1):
            idx = torch.rand(x.shape[:2]).argsort(1)[:, :keep, None].expand(-1, -1, x.size(2))
            x = x.gather(1, idx)
        for blk in self.blocks:
            x = blk(x)
        return self.head(x.mean(1))


def images(n):
    y = torch.randint(5, (n,))
    grid = torch.linspace(0, math.pi, 16)
    img = torch.sin((y[:, None, None] + 1) * grid[None, :, None]) * torch.cos((5 - y[:, None, None]) * grid[None, None, :])
    return (img + 0.3 * torch.randn(n, 16, 16)).unsqueeze(1), y


torch.manual_seed(55)
vit = SmallViT().train()
opt = torch.optim.AdamW(vit.parameters(), lr=2e-3, weight_decay=0.05)
for it in range(48):
    keep = max(16 >> (it // 7), 1)
    img, y = images(24)
    loss = F.cross_entropy(vit(img, keep), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(vit.parameters(), 1.0)
    opt.step()
    print("iter", it + 1, "patches", keep, "loss", round(loss.item(), 7))
print("final", sum(w.detach().abs().sum().item() for w in vit.parameters()))
