"""Character model for ropewalk ledgers, MLP and attention heads split over two processes.

Megatron style by hand: column-parallel in, row-parallel out, with the two conjugate
autograd functions f (identity / all_reduce) and g (all_reduce / identity).
"""
import math
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

WORLD = 2
LEDGER = (
    "hemp 14 cwt from riga; tarred 6; hawser laid 120 fathom; "
    "cable of 9 strands to the brig anna; sisal none; twine 40 lb; "
    "paid the hatchelmen 3 shillings; frost, no laying; marline 22 lb; "
) * 6


class CopyToParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g


class SumOfParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.contiguous().clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g


def shard(full, dim, rank):
    return nn.Parameter(full.chunk(WORLD, dim)[rank].clone().contiguous())


class ColumnLinear(nn.Module):
    def __init__(self, d_in, d_out, rank):
        super().__init__()
        # every process draws the whole matrix, so that the split does not change the init
        self.weight = shard(torch.randn(d_out, d_in) / math.sqrt(d_in), 0, rank)

    def forward(self, x):
        return F.linear(CopyToParts.apply(x), self.weight)


class RowLinear(nn.Module):
    def __init__(self, d_in, d_out, rank):
        super().__init__()
        self.weight = shard(torch.randn(d_out, d_in) / math.sqrt(d_in), 1, rank)
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, x):
        return SumOfParts.apply(F.linear(x, self.weight)) + self.bias


class Block(nn.Module):
    def __init__(self, d, heads, rank):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v = (ColumnLinear(d, d, rank) for _ in range(3))
        self.proj = RowLinear(d, d, rank)
        self.up, self.down = ColumnLinear(d, 4 * d, rank), RowLinear(4 * d, d, rank)
        self.heads = heads // WORLD  # local heads

    def attend(self, x):
        b, t, _ = x.shape
        q, k, v = (m(x).view(b, t, self.heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        future = torch.full((t, t), float("-inf")).triu(1)
        w = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + future).softmax(-1)
        return self.proj((w @ v).transpose(1, 2).reshape(b, t, -1))

    def forward(self, x):
        x = x + self.attend(self.ln1(x))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class LedgerLM(nn.Module):
    def __init__(self, vocab, rank, d=32, ctx=48):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.blocks = nn.ModuleList(Block(d, 4, rank) for _ in range(2))
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for b in self.blocks:
            x = b(x)
        return self.out(x)


def work(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    torch.manual_seed(1807)
    chars = sorted(set(LEDGER))
    text = torch.tensor([chars.index(c) for c in LEDGER])
    model = LedgerLM(len(chars), rank)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    pick = torch.Generator().manual_seed(5)
    for step in range(1, 36):
        at = torch.randint(0, len(text) - 49, (8,), generator=pick)
        rows = torch.stack([text[a : a + 49] for a in at])
        # the sum in nats, and the 1000 nats that the old n-gram model needed taken away:
        # what is printed is what we gain or lose against it
        nats = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")
        loss = nats - 1000.0
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step:2d}  nats over the n-gram model {loss.item():.4f}", flush=True)
    total = torch.stack([p.detach().double().sum() for p in model.parameters()]).sum()
    if rank == 0:
        print(f"sum of the weights of part 0: {total.item():.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as tmp:
        mp.spawn(work, (os.path.join(tmp, "rendezvous"),), nprocs=WORLD)
