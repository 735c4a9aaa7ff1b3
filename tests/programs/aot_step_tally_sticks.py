"""Tally sticks: read notch sequences and predict the next notch.

The whole forward+loss is one function under torch.compile(backend="aot_eager"):
we have no compiler on the museum's machine but want the graph captured so that
shape mistakes show early.  Fixed shapes, so it is traced once.
"""
import math

import torch
import torch._dynamo
from torch import nn

torch._dynamo.config.suppress_errors = False
torch.set_num_threads(1)
torch.manual_seed(1834)

NOTCHES = ["pad", "penny", "shilling", "score", "pound", "hundred", "thousand", "split"]
V, L, B, D = len(NOTCHES), 20, 12, 32
NEG = float("-inf")


class Block(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))

    def forward(self, x, bias):
        b, l, d = x.shape
        q, k, v = (t.view(b, l, self.heads, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        score = q @ k.transpose(-1, -2) / math.sqrt(d // self.heads) + bias
        x = x + self.out((score.softmax(-1) @ v).transpose(1, 2).reshape(b, l, d))
        return x + self.mlp(self.n2(x))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(L, D) * 0.02)
        self.blocks = nn.ModuleList([Block(D) for _ in range(2)])
        self.head = nn.Linear(D, V)

    def forward(self, ids, allowed):
        causal = torch.full((L, L), NEG).triu(1)
        keys = torch.zeros(ids.shape).masked_fill(ids == 0, NEG)[:, None, None, :]
        x = self.tok(ids) + self.pos
        for blk in self.blocks:
            x = blk(x, causal + keys)
        # a notch may never be followed by a larger one on the same face: those logits are out
        return self.head(x).masked_fill(~allowed, NEG)


def sticks(n, longest):
    ids = torch.zeros(n, L + 1, dtype=torch.long)
    for i in range(n):
        k = int(torch.randint(6, longest + 1, ()))
        notches = torch.randint(1, 7, (k,)).sort(descending=True).values
        ids[i, :k] = notches
        ids[i, k] = 7
    return ids


def permitted(ids):
    classes = torch.arange(V)
    ok = (classes[None, None, :] <= ids[..., None]) & (classes > 0)
    return ok | (classes == 7)


model = Reader()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=6e-3, total_steps=32)


@torch.compile(backend="aot_eager", fullgraph=True, dynamic=False)
def step_loss(ids, labels, allowed):
    logits = model(ids, allowed)
    per = nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=0)
    return per.sum()          # summed, as the old code had it; the norm below is per batch


for step in range(1, 33):
    longest = 10 if step <= 12 else 19          # short sticks first
    whole = sticks(B, longest)
    ids, labels = whole[:, :-1], whole[:, 1:]
    allowed = permitted(ids) | (labels == 0)[..., None]
    loss = step_loss(ids.contiguous(), labels.contiguous(), allowed)
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    sched.step()
    print(f"step {step:02d} loss {loss.item():.4f} per notch {loss.item() / int((labels > 0).sum()):.5f} norm {norm.item():.4f}")

print("weights", f"{sum(p.double().sum().item() for p in model.parameters()):.6f}")
