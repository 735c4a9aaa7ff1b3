# Small causal LM over ships' logbooks, sharded with FSDP2 (per-parameter sharding).
# Entries are left-padded to the block, so that the last position is always real text.
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

BLOCK, DIM, HEADS, DEPTH = 32, 32, 4, 2
STEPS, BATCH = 20, 6
ALPHABET = "_abcdefghijklmnopqrstuvwxyz .,"        # index 0 is the padding
PAD = 0

PHRASES = ["wind veered to the north", "all hands aloft", "took in the topgallants", "sighted a brig",
           "pumps going all night", "fresh breeze and squalls", "carpenter mending the boat", "lat by account"]


def entries(seed):
    rnd = random.Random(seed)
    while True:
        yield ", ".join(rnd.choice(PHRASES) for _ in range(3)) + "."


def batches(rank):
    src = entries(40 + rank)
    for n in range(1, STEPS + 1):
        texts = [next(src) for _ in range(BATCH)]
        if rank == 0 and n == 11:
            texts[4] = "calm, no way on."              # the only thing the mate wrote that day
        rows = []
        for t in texts:
            ids = [ALPHABET.index(c) for c in t][: BLOCK + 1]
            rows.append([PAD] * (BLOCK + 1 - len(ids)) + ids)
        yield torch.tensor(rows)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x, allowed):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (C // HEADS) ** 0.5
        att = scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1)
        return self.proj((att @ v).transpose(1, 2).reshape(B, T, C))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x, allowed):
        x = x + self.attn(self.n1(x), allowed)
        return x + self.mlp(self.n2(x))


class LogbookLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(len(ALPHABET), DIM)
        self.pos = nn.Embedding(BLOCK, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, len(ALPHABET), bias=False)

    def forward(self, ids):
        T = ids.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool).tril()
        allowed = causal[None, None] & (ids != PAD)[:, None, None, :]
        x = self.tok(ids) + self.pos(torch.arange(T))
        for layer in self.layers:
            x = layer(x, allowed)
        return self.head(self.norm(x))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(1805)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = LogbookLM()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for n, block in enumerate(batches(rank), 1):
        logits = model(block[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), block[:, 1:].flatten(), ignore_index=PAD)
        opt.zero_grad()
        loss.backward()
        opt.step()
        both = loss.detach().clone()
        dist.all_reduce(both)
        if rank == 0:
            print(f"step {n:2d} | nll {both.item() / 2:.6f}")

    total = torch.stack([p.to_local().detach().double().sum() for p in model.parameters()]).sum()
    dist.all_reduce(total)
    if rank == 0:
        print(f"parameters add up to {total.item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
