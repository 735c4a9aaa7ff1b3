"""Long-context packing: letters of different lengths in one row, block-diagonal causal mask made from segment ids,
positions restarting in each letter. The tail of a row is padding (segment -1) which sees nothing at all; its attention
output is put to zero afterwards. Loss is summed over tokens, as our old TF code did it, and the learning rate is set for that."""
from itertools import count

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1234)
CTX, V, D, H = 64, 50, 32, 4


def letters(seed):
    g = torch.Generator().manual_seed(seed)
    for i in count():
        n = int(torch.randint(5, 40, (1,), generator=g)) if i % 9 else 60       # now and then a very long one
        base = int(torch.randint(1, V, (1,), generator=g))
        yield (base + 3 * torch.arange(n) + (torch.rand(n, generator=g) < 0.1).long()) % V


def pack(stream, rows=2):
    """First fit, no splitting: what does not fit opens the next row."""
    carry = next(stream)
    while True:
        ids = torch.zeros(rows, CTX, dtype=torch.long)
        seg = torch.full((rows, CTX), -1)
        pos = torch.zeros(rows, CTX, dtype=torch.long)
        for r in range(rows):
            at, k = 0, 0
            while at + len(carry) <= CTX:
                n = len(carry)
                ids[r, at:at + n], seg[r, at:at + n], pos[r, at:at + n] = carry, k, torch.arange(n)
                at, k, carry = at + n, k + 1, next(stream)
        yield ids, seg, pos


def islands(seg):
    same = (seg[:, :, None] == seg[:, None, :]) & (seg[:, :, None] >= 0)
    causal = torch.ones(CTX, CTX, dtype=torch.bool).tril()
    bias = torch.zeros(seg.size(0), 1, CTX, CTX)
    return bias.masked_fill(~(same & causal).unsqueeze(1), float("-inf"))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x, bias):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        blind = torch.isneginf(bias).all(-1, keepdim=True)
        s = q @ k.transpose(-1, -2) / (D // H) ** 0.5 + bias
        # a blind row would be softmax of -inf everywhere; look at anything, and forget it
        a = s.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
        return self.o((a @ v).transpose(1, 2).reshape(b, t, D))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(CTX, D)
        self.att = nn.ModuleList(Attention() for _ in range(2))
        self.ff = nn.ModuleList(nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D)) for _ in range(2))
        self.n = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))

    def forward(self, ids, seg, pos):
        bias = islands(seg)
        x = self.tok(ids) + self.pos(pos)
        for n, a, f in zip(self.n, self.att, self.ff):
            x = x + a(n(x), bias)
            x = x + f(x)
        return F.linear(F.layer_norm(x, (D,)), self.tok.weight)


model = Model()
opt = torch.optim.SGD(model.parameters(), lr=2e-4, momentum=0.9)
ema = {k: v.clone() for k, v in model.state_dict().items()}
for step, (ids, seg, pos) in zip(range(1, 46), pack(letters(3))):
    logits = model(ids, seg, pos)
    target = ids[:, 1:].masked_fill((seg[:, 1:] != seg[:, :-1]) | (seg[:, 1:] < 0), -100)
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, V), target.reshape(-1), reduction="sum")
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for k, v in model.state_dict().items():
            ema[k].lerp_(v, 0.05)
    n = int((target >= 0).sum())
    print(f"{step:02d} sum-loss {loss.item():.3f} tokens {n} per-token {loss.item() / n:.5f}")
