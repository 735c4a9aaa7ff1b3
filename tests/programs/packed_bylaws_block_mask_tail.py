# Continued pre-training on town bylaws. Documents are packed greedily into rows of 48 bytes; position ids restart at
# each document, and attention is block diagonal (a document never sees its neighbour).
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)
torch.set_num_threads(1)

WIDTH = 48
SUBJECTS = ["geese", "carts", "wells", "fairs", "kilns", "bells", "hedges", "ovens"]
RULES = ["shall be kept behind the church", "pay two pence at the gate", "are shut after dusk",
         "must be swept by the owner", "may not cross the green on feast days"]


@dataclass
class Pack:
    ids: torch.Tensor
    pos: torch.Tensor
    doc: torch.Tensor       # number of the document, -1 in the tail that nothing filled


def bylaws():
    gen = torch.Generator().manual_seed(3)
    while True:
        a = int(torch.randint(len(SUBJECTS), (1,), generator=gen))
        b = int(torch.randint(len(RULES), (1,), generator=gen))
        yield f"{SUBJECTS[a]} {RULES[b]}.".encode()


def pack_stream(rows):
    docs = bylaws()
    left = b""
    for r in range(rows):
        ids, pos, doc = [], [], []
        d = 0
        while len(ids) < WIDTH:
            text = left or next(docs)
            left = b""
            room = WIDTH - len(ids)
            if r == 61 and ids:         # end of the first charter: its last sheet is not filled from the next one
                break
            left = text[room:] if len(text) > room else b""
            text = text[:room]
            ids += list(text)
            pos += range(len(text))
            doc += [d] * len(text)
            d += 1
        fill = WIDTH - len(ids)
        yield Pack(torch.tensor(ids + [0] * fill), torch.tensor(pos + [0] * fill), torch.tensor(doc + [-1] * fill))


def block_mask(doc):
    same = doc[:, :, None] == doc[:, None, :]
    real = (doc >= 0)[:, None, :]
    causal = torch.ones(WIDTH, WIDTH, dtype=torch.bool).tril()
    allowed = same & real & causal
    return torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))[:, None]


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.h = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / (d // self.h) ** 0.5 + mask
        probs = scores.softmax(dim=-1)
        x = x + self.out((probs @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class Scribe(nn.Module):
    def __init__(self, d=32, layers=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(128, d), nn.Embedding(WIDTH, d)
        self.layers = nn.ModuleList(Layer(d, 2) for _ in range(layers))
        self.head = nn.Linear(d, 128)

    def forward(self, ids, pos, mask):
        x = self.tok(ids) + self.pos(pos)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


net = Scribe()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.95))
batch, step = [], 0
for pack in pack_stream(4 * 28):
    batch.append(pack)
    if len(batch) < 4:
        continue
    step += 1
    ids, pos, doc = (torch.stack([getattr(p, f) for p in batch]) for f in ("ids", "pos", "doc"))
    batch = []
    logits = net(ids, pos, block_mask(doc))[:, :-1]
    target = ids[:, 1:].masked_fill(doc[:, 1:] != doc[:, :-1], -100).masked_fill(doc[:, 1:] < 0, -100)
    loss = F.cross_entropy(logits.reshape(-1, 128), target.reshape(-1), ignore_index=-100)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    print(f"sheet {step:3d}  loss {loss.item():.6f}")
print(f"checksum {sum(p.double().sum().item() for p in net.parameters()):.6f}")
