"""A tiny GPT over notary deeds, sharded with fully_shard.

Names in the deeds are redacted: a redacted token may be predicted from, but nobody attends to it.
"""
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

CONF = dict(vocab=48, ctx=20, dim=32, heads=4, layers=2, steps=22, rows=4, lr=3e-3)
REDACTED = 1


class DeedAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x, allowed):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // self.heads)
        scores = scores.masked_fill(~allowed[:, None], float("-inf"))
        weights = scores.softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = DeedAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, allowed):
        x = x + self.attn(self.n1(x), allowed)
        return x + self.mlp(self.n2(x))


class DeedGPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok, self.pos = nn.Embedding(c["vocab"], c["dim"]), nn.Embedding(c["ctx"], c["dim"])
        self.blocks = nn.ModuleList(Block(c["dim"], c["heads"]) for _ in range(c["layers"]))
        self.norm, self.head = nn.LayerNorm(c["dim"]), nn.Linear(c["dim"], c["vocab"], bias=False)

    def forward(self, ids):
        t = ids.shape[1]
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        allowed = causal[None] & (ids != REDACTED)[:, None, :]
        x = self.tok(ids) + self.pos(torch.arange(t))
        for block in self.blocks:
            x = block(x, allowed)
        return self.head(self.norm(x))


def deeds(step, rank, c):
    g = torch.Generator().manual_seed(step * 17 + rank)
    start = torch.randint(0, c["vocab"], (c["rows"], 1), generator=g)
    ids = (start + 5 * torch.arange(c["ctx"] + 1)) % (c["vocab"] - 2) + 2
    hidden = torch.rand(ids.shape, generator=g) < 0.08
    # a deed opens with its date, which is never redacted; the folio of step 9 begins in the middle of a name
    hidden[:, 0] = False
    if (step, rank) == (9, 1):
        hidden[2, 0] = True
    return ids.masked_fill(hidden, REDACTED)


def main(c=CONF):
    dist.init_process_group("gloo")
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(1804)
    model = DeedGPT(c)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"], betas=(0.9, 0.95), foreach=False)
    for step in range(1, c["steps"] + 1):
        ids = deeds(step, rank, c)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        both = loss.detach().clone()
        dist.all_reduce(both)
        if rank == 0:
            print(f"step {step:3d} loss {both.item() / dist.get_world_size():.6f}", flush=True)
    total = sum(p.full_tensor().detach().double().sum().item() for p in model.parameters())
    if rank == 0:
        print(f"weights {total:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
