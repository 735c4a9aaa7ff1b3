# Denoising diffusion on 8x8 patches of scanned film, trained roll after roll.
# A shadow of the weights is averaged; it replaces the weights whenever a roll is finished,
# and also every tenth frame, so that long rolls are settled in between.
import numpy as np
import torch
import torch.nn as nn

rng = np.random.default_rng(35)
torch.manual_seed(35)

LEVELS = 20
noise_share = torch.linspace(0.02, 0.95, LEVELS)
ROLLS = [6, 8, 6, 9, 7]           # frames per roll


def frame():
    gx, gy = np.meshgrid(np.linspace(0, 1, 8), np.linspace(0, 1, 8))
    out = []
    for _ in range(16):
        ax, ay, ph = rng.normal(size=3)
        out.append(np.sin(3 * ax * gx + 3 * ay * gy + ph))
    return torch.tensor(np.array(out), dtype=torch.float32).unsqueeze(1)


class PatchNet(nn.Module):
    def __init__(self, c=10):
        super().__init__()
        self.level = nn.Embedding(LEVELS, c)
        self.inp = nn.Conv2d(1, c, 3, padding=1)
        self.mid = nn.Conv2d(c, c, 3, padding=1)
        self.norm = nn.GroupNorm(2, c)
        self.out = nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, x, k):
        h = nn.functional.silu(self.inp(x) + self.level(k)[:, :, None, None])
        return self.out(nn.functional.silu(self.norm(self.mid(h))) + h)


class Shadow:
    def __init__(self, net, decay=0.8):
        self.net, self.decay, self.count = net, decay, 0
        self.mean = [torch.zeros_like(p) for p in net.parameters()]

    @torch.no_grad()
    def follow(self):
        self.count += 1
        for m, p in zip(self.mean, self.net.parameters()):
            m.mul_(self.decay).add_(p, alpha=1 - self.decay)

    @torch.no_grad()
    def settle(self):
        share = 1 - self.decay ** self.count
        for m, p in zip(self.mean, self.net.parameters()):
            p.copy_(m / share)
            m.zero_()
        self.count = 0


net = PatchNet()
shadow = Shadow(net)
opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
number = 0
for roll, frames in enumerate(ROLLS, 1):
    for f in range(1, frames + 1):
        number += 1
        clean = frame()
        k = torch.randint(0, LEVELS, (len(clean),))
        s = noise_share[k].view(-1, 1, 1, 1)
        noise = torch.randn_like(clean)
        dirty = (1 - s).sqrt() * clean + s.sqrt() * noise
        loss = nn.functional.mse_loss(net(dirty, k), noise)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        shadow.follow()
        print(f"frame {number:3d} (roll {roll}) loss {loss.item():.5f}")
        if f == frames:
            shadow.settle()
        if number % 10 == 0:
            shadow.settle()

print("checksum of the net", f"{sum(float(p.detach().abs().sum()) for p in net.parameters()):.4f}")
