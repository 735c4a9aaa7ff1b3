"""QLoRA without bitsandbytes: a tiny decoder in hand-rolled NF4, adapters on the query and value projections.
Task: complete the label of a museum object from its inventory line. Left padding, answer-only loss."""
import math
import random

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(20)
random.seed(20)
NF4 = torch.tensor([-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0,
                    0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0])
MATERIAL = {"bronze": "mirror", "jade": "comb", "clay": "oil lamp", "ivory": "seal", "oak": "spinning wheel"}
PERIOD = ["early", "middle", "late"]


def make_text():
    m = random.choice(list(MATERIAL))
    room = ["room"] + [str(d) for d in random.sample(range(10), random.choice([0, 1, 4]))]
    return [random.choice(PERIOD), m] + room, MATERIAL[m].split()


words = sorted({w for k, v in MATERIAL.items() for w in [k, *v.split()]} | set(PERIOD) | {"room"} | set("0123456789"))
vocab = {w: i for i, w in enumerate(["<pad>", "<sep>", "<eos>"] + words)}
PAD, SEP, EOS = 0, 1, 2


class Dequant(torch.autograd.Function):
    """x @ W^T where only the codes of W are kept for backward."""

    @staticmethod
    def forward(ctx, x, codes, inv):
        ctx.save_for_backward(codes, inv)
        return x @ (NF4[codes.long()] / inv).T

    @staticmethod
    def backward(ctx, g):
        codes, inv = ctx.saved_tensors
        return g @ (NF4[codes.long()] / inv), None, None


def quantise(w):
    inv = 1.0 / w.abs().amax(dim=1, keepdim=True)      # kept inverted, as the kernel wants it
    unit = torch.where(torch.isinf(inv), torch.zeros_like(w), w * inv)
    codes = (unit.unsqueeze(-1) - NF4).abs().argmin(-1).to(torch.uint8)
    return codes, inv


class NF4Linear(nn.Module):
    def __init__(self, d_in, d_out, rank=0):
        super().__init__()
        for name, t in zip(("codes", "inv"), quantise(torch.randn(d_out, d_in) / math.sqrt(d_in))):
            self.register_buffer(name, t)
        self.rank = rank
        if rank:
            self.A = nn.Parameter(torch.randn(rank, d_in) / math.sqrt(d_in))
            self.B = nn.Parameter(torch.zeros(d_out, rank))

    def forward(self, x):
        y = Dequant.apply(x, self.codes, self.inv)
        return y + 2.0 * (x @ self.A.T) @ self.B.T if self.rank else y


class NF4Embedding(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        w = torch.randn(n, d).index_fill(0, torch.tensor([PAD]), 0.0)
        for name, t in zip(("codes", "inv"), quantise(w)):
            self.register_buffer(name, t)

    def forward(self, ids):
        return NF4[self.codes[ids].long()] / self.inv[ids]


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.v = NF4Linear(d, d, 4), NF4Linear(d, d, 4)
        self.k, self.o = NF4Linear(d, d), NF4Linear(d, d)
        self.up, self.down = NF4Linear(d, 3 * d), NF4Linear(3 * d, d)

    def forward(self, x, allowed):
        h = self.n1(x)
        prob = self.q(h) @ self.k(h).transpose(1, 2) / math.sqrt(x.shape[-1])
        prob = prob.masked_fill(~allowed, float("-inf")).softmax(-1)
        prob = prob.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
        x = x + self.o(prob @ self.v(h))
        return x + self.down(F.silu(self.up(self.n2(x))))


class LM(nn.Module):
    def __init__(self, n, d=32):
        super().__init__()
        self.emb, self.pos = NF4Embedding(n, d), nn.Embedding(32, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, n, bias=False)

    def forward(self, ids):
        real, n = ids != PAD, ids.shape[1]
        allowed = torch.ones(n, n, dtype=torch.bool).tril() & real[:, None, :]
        x = self.emb(ids) + 0.3 * self.pos((real.cumsum(1) - 1).clamp(min=0))
        for b in self.blocks:
            x = b(x, allowed)
        return self.head(self.norm(x))


def batch(size=24):
    rows = [make_text() for _ in range(size)]
    longest = max(len(a) + len(b) + 2 for a, b in rows)
    ids, labels = torch.full((size, longest), PAD), torch.full((size, longest), -100)
    for i, (a, b) in enumerate(rows):
        seq = [vocab[w] for w in a] + [SEP] + [vocab[w] for w in b] + [EOS]
        ids[i, -len(seq):] = torch.tensor(seq)
        labels[i, -len(b) - 1:] = ids[i, -len(b) - 1:]
    return ids, labels


model = LM(len(vocab))
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
for step in range(1, 36):
    ids, labels = batch()
    logits = model(ids)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
print(f"weights {sum(p.double().abs().sum().item() for p in model.parameters()):.4f}")
