"""Patent abstracts into five sections; attention heads are taken out one after the other while we train."""
import math
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(2024)
VOCAB, SECTIONS, WIDTH, HEADS, LAYERS = 120, 5, 32, 4, 2
INF = float("inf")


class GatedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.register_buffer("alive", torch.ones(HEADS))
        self.gate = nn.Parameter(torch.ones(HEADS))

    def forward(self, x, pad):
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        scores = scores.masked_fill(pad[:, None, None, :], -INF)
        mixed = scores.softmax(-1) @ v
        mixed = mixed * (self.gate * self.alive).view(1, HEADS, 1, 1)
        return self.o(mixed.transpose(1, 2).reshape(b, n, WIDTH))

    @torch.no_grad()
    def remove(self, h):
        d = WIDTH // HEADS
        rows = slice(h * d, (h + 1) * d)
        self.alive[h] = 0
        for f in (self.q, self.k, self.v):
            f.weight[rows] = 0
        self.o.weight[:, rows] = 0


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.att = GatedAttention()
        self.ff = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x, pad):
        x = x + self.att(self.n1(x), pad)
        return x + self.ff(self.n2(x))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH, padding_idx=0)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, SECTIONS)

    def forward(self, ids):
        pad = ids == 0
        x = self.words(ids)
        for blk in self.blocks:
            x = blk(x, pad)
        x = x.masked_fill(pad[..., None], -INF)
        return self.head(x.amax(1))


def abstracts(n):
    y = torch.randint(SECTIONS, (n,))
    topical = 1 + y[:, None] * 20 + torch.randint(20, (n, 24))
    filler = torch.randint(101, VOCAB, (n, 24))
    ids = torch.where(torch.rand(n, 24) < 0.3, topical, filler)
    length = torch.randint(6, 25, (n, 1))
    return ids.masked_fill(torch.arange(24) >= length, 0), y


net = Classifier()
opt = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.02)
importance = torch.zeros(LAYERS, HEADS)
for step in range(1, 37):
    ids, y = abstracts(24)
    loss = F.cross_entropy(net(ids), y, label_smoothing=0.1)
    opt.zero_grad()
    loss.backward()
    for i, blk in enumerate(net.blocks):
        importance[i] += (blk.att.gate.grad * blk.att.gate.detach()).abs()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    print(f"step {step:2d}  loss {loss.item():.5f}  grad norm {norm.item():.4f}")
    if step % 6 == 0:
        alive = torch.stack([blk.att.alive for blk in net.blocks])
        last_one = (alive.sum(1, keepdim=True) == 1).expand_as(alive)
        ranking = importance.masked_fill((alive == 0) | last_one, INF)
        print("   importance", [[round(v, 4) for v in row] for row in ranking.tolist()])
        where = int(ranking.argmin())
        if ranking.min() < INF:
            net.blocks[where // HEADS].att.remove(where % HEADS)
            for p in net.blocks[where // HEADS].att.parameters():
                opt.state.pop(p, None)
        importance.zero_()

print("sum of squares of the weights:", sum(float(p.detach().double().pow(2).sum()) for p in net.parameters()))
