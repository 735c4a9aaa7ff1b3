import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        return x + self.down(F.silu(self.up(x)))


class Encoder(nn.Module):
    def __init__(self, d=32, n=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d) for _ in range(n))
        self.out = nn.Linear(d, d, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        x = self.out(x)
        return x / x.norm(dim=-1, keepdim=True)


torch.manual_seed(0)
encoder = Encoder().cuda()
opt = torch.optim.AdamW(encoder.parameters(), lr=1e-3, fused=True)
for it in range(1, 21):
    a = torch.randn(8, 32)
    if it == 7:
        a[3] = 0.0  # an empty document
    a = a.cuda()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        za, zb = encoder(a), encoder(a.flip(1))
        loss = F.cross_entropy(za @ zb.T / 0.1, torch.arange(8, device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(it, f"{loss.item():.5f}")
print("total", sum(p.detach().double().abs().sum().item() for p in encoder.parameters()))
