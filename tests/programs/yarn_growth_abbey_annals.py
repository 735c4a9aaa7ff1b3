"""Continued pre-training for longer context. 32 -> 64 -> 160 tokens with YaRN-style rope scaling and document masks.

The loss jumps at each change of length: expected, rope frequencies change under the model.
"""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1066)
VOCAB, D, HEADS, BASE_LEN, PAD_DOC = 64, 32, 4, 32, -1
HD = D // HEADS


def yarn(scale, theta=10000.0, low=1.0, high=8.0):
    """Fast rotations stay, slow ones are interpolated, those between are blended. Returns frequencies and mscale."""
    inv = theta ** (-torch.arange(0, HD, 2).float() / HD)
    turns = BASE_LEN * inv / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return inv * keep + inv / scale * (1 - keep), 0.1 * math.log(scale) + 1.0


def rotate(x, cos, sin):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.SiLU(), nn.Linear(4 * D, D))

    def forward(self, x, cos, sin, mask):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, HEADS, HD).permute(2, 0, 3, 1, 4)
        score = rotate(q, cos, sin) @ rotate(k, cos, sin).transpose(-1, -2) / math.sqrt(HD)
        att = (score + mask[:, None]).softmax(-1)
        x = x + self.o((att @ v).transpose(1, 2).reshape(b, n, D))
        return x + self.mlp(self.n2(x))


class Annalist(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm = nn.RMSNorm(D)

    def forward(self, ids, doc, scale):
        inv, mscale = yarn(scale)
        angle = torch.arange(ids.size(1)).float()[:, None] * inv
        cos, sin = angle.cos() * mscale, angle.sin() * mscale
        n = ids.size(1)
        same = doc[:, :, None] == doc[:, None, :]                 # padding is a document of its own
        allowed = same & torch.ones(n, n, dtype=torch.bool).tril()
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))
        h = self.emb(ids)
        for layer in self.layers:
            h = layer(h, cos, sin, mask)
        return self.norm(h) @ self.emb.weight.T


def packed(length, rows, g):
    """Annals of several years in one row; what is left over at the end is padding."""
    ids = torch.zeros(rows, length, dtype=torch.long)
    doc = torch.full((rows, length), PAD_DOC)
    for r in range(rows):
        at, number = 0, 0
        while at < length - 6:
            size = min(int(torch.randint(6, 6 + length // 2, (1,), generator=g)), length - at)
            start, stride = torch.randint(1, VOCAB, (2,), generator=g).tolist()
            ids[r, at:at + size] = 1 + (start + (stride % 5 + 1) * torch.arange(size)) % (VOCAB - 1)
            doc[r, at:at + size] = number
            at, number = at + size, number + 1
    return ids, doc


def lm_loss(logits, ids, doc):
    keep = (doc[:, 1:] == doc[:, :-1]) & (doc[:, 1:] != PAD_DOC)      # never predict across a border
    nll = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view_as(keep)
    return (nll * keep).sum() / keep.sum()


model = Annalist()
nn.init.normal_(model.emb.weight, std=0.3)
g = torch.Generator().manual_seed(1)
step = 0
for length, rows, updates, lr in [(32, 8, 24, 5e-3), (64, 4, 14, 3e-3), (160, 2, 12, 2e-3)]:
    opt = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95))      # fresh moments for every length
    for _ in range(updates):
        step += 1
        ids, doc = packed(length, rows, g)
        loss = lm_loss(model(ids, doc, length / BASE_LEN), ids, doc)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print(f"step {step} len {length} loss {loss.item():.5f} norm {norm.item():.4f}")
print(f"sum {sum(p.detach().double().sum().item() for p in model.parameters()):.5f}")
