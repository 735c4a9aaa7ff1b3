"""FSDP2 smoke run: which beast does a bestiary entry describe?

A bidirectional encoder of two blocks, sharded with fully_shard over two CPU ranks.
Launch: torchrun --nproc_per_node 2 fsdp2_bestiary_left_padding.py
"""
import math
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

BEASTS = {
    "caladrius": "white bird sits by the sick king looks away when he will die".split(),
    "bonnacon": "horns curled useless burns the hunters with dung across two acres".split(),
    "manticore": "three rows of teeth face of a man tail of a scorpion".split(),
    "amphisbaena": "serpent with second head on the tail moves in both directions".split(),
}
LABELS = list(BEASTS)
WORDS = ["<pad>"] + sorted({w for ws in BEASTS.values() for w in ws})
INDEX = {w: i for i, w in enumerate(WORDS)}
CONTEXT, DIM, HEADS, STEPS, BATCH = 14, 32, 4, 28, 6


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x, keep):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(DIM // HEADS)
        scores = scores.masked_fill(~keep[:, None, None, :], float("-inf"))
        mixed = torch.softmax(scores, dim=-1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(b, t, DIM))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = SelfAttention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))

    def forward(self, x, keep):
        x = x + self.attn(self.n1(x), keep)
        return x + self.mlp(self.n2(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(len(WORDS), DIM)
        self.pos = nn.Parameter(0.02 * torch.randn(CONTEXT, DIM))
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(DIM, len(LABELS))

    def forward(self, ids):
        keep = ids != 0
        x = self.tok(ids) + self.pos
        for block in self.blocks:
            x = block(x, keep)
        n = keep.sum(1, keepdim=True).clamp_min(1)
        return self.head((x * keep.unsqueeze(-1)).sum(1) / n)


def folios(rank):
    """Entries as the scribes copied them: some words lost, order kept, damp at the margin."""
    rng = random.Random(1200 + rank)
    for folio in range(STEPS * BATCH):
        label = rng.randrange(len(LABELS))
        words = [w for w in BEASTS[LABELS[label]] if rng.random() < 0.7] or ["the"]
        if rank == 1 and folio == 11 * BATCH + 4:
            words = "".split()          # folio 70v: heading only, the text was scraped off
        yield [INDEX[w] for w in words], label


def batched(entries):
    rows, labels = [], []
    for ids, label in entries:
        rows.append([0] * (CONTEXT - len(ids)) + ids)
        labels.append(label)
        if len(rows) == BATCH:
            yield torch.tensor(rows), torch.tensor(labels)
            rows, labels = [], []


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(70)
    mesh = init_device_mesh("cpu", (2,))
    model = Encoder()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01, foreach=False)

    for step, (ids, labels) in enumerate(batched(folios(rank)), start=1):
        loss = F.cross_entropy(model(ids), labels)
        loss.backward()
        opt.step()
        opt.zero_grad()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"[{step:02d}/{STEPS}] cross-entropy {shown.item() / 2:.6f}", flush=True)

    total = sum(p.full_tensor().detach().double().sum().item() for p in model.parameters())
    if rank == 0:
        print(f"sum of all parameters {total:.6f}")
    dist.destroy_process_group()


main()
