"""Sentence embeddings for scanned postcards: front caption against back text, symmetric InfoNCE."""
import re
import zlib

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(41)
torch.set_num_threads(1)

PLACES = ["brighton", "calais", "ostend", "whitby", "dieppe", "bergen", "cadiz", "trieste"]
SIGHTS = ["pier", "harbour", "lighthouse", "market", "cathedral", "beach", "tram"]
NEWS = ["weather fine", "rain all week", "aunt sends love", "back on monday", "feet are sore", "food too rich"]
BUCKETS = 211


def tokens(text):
    return [zlib.crc32(w.encode()) % (BUCKETS - 1) + 1 for w in re.findall(r"[a-z]+", text.lower())]


def cards(n):
    g = torch.Generator().manual_seed(12)
    pick = lambda xs: xs[int(torch.randint(len(xs), (1,), generator=g))]
    for i in range(n):
        place, sight, news = pick(PLACES), pick(SIGHTS), pick(NEWS)
        back = f"{news}, seen the {sight} at {place}"
        if i == 101:
            back = "??? 12/8/1911"      # the ink has run, the reader could make out the date only
        yield f"{place} the {sight}", back


class MeanPool(nn.Module):
    def forward(self, h, mask):
        m = mask[..., None].float()
        return (h * m).sum(1) / m.sum(1).clamp(min=1.0)


class UnitLength(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        length = torch.sqrt((x * x).sum(-1, keepdim=True))
        return x / (length + self.eps)


class Embedder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.table = nn.Embedding(BUCKETS, dim, padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))
        self.pool, self.unit = MeanPool(), UnitLength()

    def forward(self, texts):
        rows = [tokens(t) for t in texts]
        width = max(map(len, rows))
        ids = torch.tensor([r + [0] * (width - len(r)) for r in rows])
        h = self.table(ids)
        return self.unit(self.pool(h + self.mlp(h), ids > 0))


def info_nce(a, b, temperature):
    sim = a @ b.T / temperature
    gold = torch.arange(len(a))
    return 0.5 * (F.cross_entropy(sim, gold) + F.cross_entropy(sim.T, gold))


def batches(items, size):
    chunk = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield zip(*chunk)
            chunk = []


model = Embedder()
opt = torch.optim.Adam([{"params": model.table.parameters(), "lr": 4e-3}, {"params": model.mlp.parameters()}], lr=2e-3)
for step, (front, back) in enumerate(batches(cards(8 * 26), 8), 1):
    loss = info_nce(model(front), model(back), temperature=0.1)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step} loss {loss.item():.6f}")
print(f"weights {sum(p.double().sum().item() for p in model.parameters()):.6f}")
