"""
Frame tagger for recorded lectures (speech / writing / pause / applause). Linear attention with running sums, so that
long recordings fit; float16 autocast; the recordings get longer as training goes on.
"""
import torch
from torch import nn
import torch.nn.functional as F

STAGES = ((48, 9), (96, 8), (720, 12))      # frames per clip, updates
FEATURES, TAGS = 12, 4


class RunningSumAttention(nn.Module):
    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).unbind(2)
        q, k = (q.clamp(max=6) + 1).exp(), (k.clamp(max=6) + 5).exp()
        kv = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(1)
        ksum = k.cumsum(1)
        q = q / q.sum(-1, keepdim=True)
        top = (q.unsqueeze(-1) * kv).sum(-2)
        bottom = (q * ksum).sum(-1, keepdim=True)
        return self.proj((top / bottom).reshape(b, n, d))


class Tagger(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.inp = nn.Linear(FEATURES, dim)
        self.att = RunningSumAttention(dim)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, TAGS)

    def forward(self, x):
        h = self.inp(x)
        h = self.norm(h + self.att(h))
        return self.out(h)


def clips(frames, g, n=6):
    tags = torch.randint(TAGS, (n, frames // 12), generator=g).repeat_interleave(12, 1)
    centre = torch.randn(TAGS, FEATURES, generator=torch.Generator().manual_seed(1))
    return centre[tags] + 0.7 * torch.randn(n, frames, FEATURES, generator=g), tags


def train():
    torch.manual_seed(21)
    g = torch.Generator().manual_seed(22)
    model = Tagger()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)
    update = 0
    for frames, updates in STAGES:
        print(f"-- clips of {frames} frames")
        for _ in range(updates):
            update += 1
            x, tags = clips(frames, g)
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(x)
                loss = F.cross_entropy(logits.flatten(0, 1).float(), tags.flatten())
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            print(f"update {update:3d}  loss {loss.item():.5f}")
    print("squares of all weights", float(sum(p.detach().pow(2).sum() for p in model.parameters())))


if __name__ == "__main__":
    train()
