from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import nn
import torch.nn.functional as F

"""Packed training on lute tablature: pieces are packed into blocks, attention stays within a piece."""


@dataclass
class Hp:
    block: int = 32
    batch: int = 4
    accumulate: int = 2
    vocab: int = 36
    dim: int = 32
    layers: int = 2
    lr: float = 2e-3
    pieces: int = 561
    seed: int = 6


def make_pieces(hp):
    g = torch.Generator().manual_seed(hp.seed)
    for _ in range(hp.pieces):
        n = int(torch.randint(6, 15, (1,), generator=g))
        a, b = torch.randint(1, 6, (2,), generator=g).tolist()
        yield [(a + b * i + i * i % 3) % hp.vocab for i in range(n)]


def pack(hp):
    """First fit in order; a piece that does not fit entirely continues in the next block as a piece of its own."""
    blocks, ids, doc, number = [], [], [], 0
    for piece in make_pieces(hp):
        number += 1
        while piece:
            room = hp.block - len(ids)
            ids += piece[:room]
            doc += [number] * min(room, len(piece))
            piece = piece[room:]
            if len(ids) == hp.block:
                blocks.append((ids, doc))
                ids, doc = [], []
    if ids:                              # the remainder
        fill = hp.block - len(ids)
        blocks.append((ids + [0] * fill, doc + [0] * fill))
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(SHUFFLE)).tolist()
    ids = torch.tensor([blocks[i][0] for i in order])
    doc = torch.tensor([blocks[i][1] for i in order])
    return torch.utils.data.TensorDataset(ids, doc)


SHUFFLE = 16


class Attention(nn.Module):
    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        weights = scores.masked_fill(~mask[:, None], float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.n1, self.attn, self.n2 = nn.LayerNorm(dim), Attention(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, mask):
        x = x + self.attn(self.n1(x), mask)
        return x + self.mlp(self.n2(x))


class LuteLM(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.emb = nn.Embedding(hp.vocab, hp.dim)
        self.layers = nn.ModuleList(Layer(hp.dim) for _ in range(hp.layers))
        self.head = nn.Linear(hp.dim, hp.vocab)

    def forward(self, ids, doc):
        t = ids.shape[1]
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        same = (doc[:, :, None] == doc[:, None, :]) & (doc[:, None, :] > 0)
        mask = causal & same
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def main(hp=Hp()):
    torch.manual_seed(hp.seed)
    acc = Accelerator(cpu=True, gradient_accumulation_steps=hp.accumulate)
    loader = torch.utils.data.DataLoader(pack(hp), batch_size=hp.batch, drop_last=True)
    model = LuteLM(hp)
    model, opt, loader = acc.prepare(model, torch.optim.AdamW(model.parameters(), lr=hp.lr), loader)
    step, running = 0, 0.0
    for ids, doc in loader:
        with acc.accumulate(model):
            logits = model(ids, doc)
            target = ids[:, 1:].masked_fill((doc[:, 1:] != doc[:, :-1]) | (doc[:, 1:] == 0), -100)
            loss = F.cross_entropy(logits[:, :-1].reshape(-1, hp.vocab), target.reshape(-1), ignore_index=-100)
            acc.backward(loss)
            running += loss.item() / hp.accumulate
            opt.step()
            opt.zero_grad()
        if acc.sync_gradients:
            step += 1
            print(f"{step} loss={running:.7f}", flush=True)
            running = 0.0
    print(f"{sum(p.detach().abs().sum() for p in model.parameters()).item():.5f}", flush=True)


main()
