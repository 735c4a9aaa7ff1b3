# film stock from a patch of grain. small vit, patches of 4x4
import torch, torch.nn as nn, torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(1977)
STOCKS = 4
PEAK = 2e-2
WARM_UP = 6
STEPS = 45

kernels = torch.randn(STOCKS, 1, 5, 5)
kernels = kernels / kernels.flatten(1).norm(dim=1).view(-1, 1, 1, 1)


def grain(n):
    y = torch.randint(STOCKS, (n,))
    noise = torch.randn(n, 1, 20, 20)
    maps = F.conv2d(noise, kernels)
    return maps[torch.arange(n), y].unsqueeze(1), y


class Attention(nn.Module):
    def __init__(self, d, heads=2):
        super().__init__()
        self.h = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))


class GrainViT(nn.Module):
    def __init__(self, d=24, depth=2):
        super().__init__()
        self.patch = nn.Conv2d(1, d, 4, stride=4)
        self.pos = nn.Parameter(0.02 * torch.randn(16, d))
        self.att = nn.ModuleList(Attention(d) for _ in range(depth))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(d, 48), nn.GELU(), nn.Linear(48, d)) for _ in range(depth))
        self.head = nn.Linear(d, STOCKS)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        for a, m in zip(self.att, self.mlp):
            x = x + a(x)
            x = x + m(x)
        return self.head((x ** 2).mean(1))


def warm_up(s):
    return (s + 1) / WARM_UP


vit = GrainViT()
opt = torch.optim.AdamW(vit.parameters(), lr=PEAK, weight_decay=0.01)
sched = LambdaLR(opt, warm_up)
for s in range(STEPS):
    x, y = grain(32)
    loss = F.cross_entropy(vit(x), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(vit.parameters(), 1.0)
    opt.step()
    sched.step()
    print(s + 1, "%.4f" % loss.item())
print("absolute sum of weights: %.4f" % sum(p.abs().sum().item() for p in vit.parameters()))
