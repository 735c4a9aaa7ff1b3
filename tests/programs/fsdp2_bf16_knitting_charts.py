"""Next-stitch model on knitting charts, sharded with fully_shard (FSDP2), bf16 compute, fp32 reduction.

Masks hold real -inf (causal, and the right edge of narrow charts); a row always sees itself, so the softmax is safe.
Charts get wider during the run, and the loss is the *sum* over stitches, so it jumps at every widening.
"""
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

STITCHES = ["k", "p", "yo", "k2tog", "ssk", "c4f", "c4b", "mb", "sl", "<cast-on>"]
CURRICULUM = {1: 8, 13: 16, 25: 32}
STEPS = 36
BATCH = 6


class Needle(nn.Module):
    """Pre-norm block with explicit attention, so that the additive mask is ours."""

    def __init__(self, d, heads):
        super().__init__()
        self.h = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // self.h) + mask.to(q.dtype)
        att = scores.float().softmax(-1).to(v.dtype)
        x = x + self.proj((att @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class ChartModel(nn.Module):
    def __init__(self, d=32, heads=4, depth=2, longest=32):
        super().__init__()
        self.stitch = nn.Embedding(len(STITCHES), d)
        self.place = nn.Embedding(longest, d)
        self.blocks = nn.ModuleList(Needle(d, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, len(STITCHES), bias=False)

    def forward(self, ids, mask):
        x = self.stitch(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def charts(width, gen):
    repeat = torch.randint(2, 5, (BATCH, 1), generator=gen)
    offset = torch.randint(0, 9, (BATCH, 1), generator=gen)
    col = torch.arange(width).expand(BATCH, width)
    body = (offset + (col % repeat) * 2) % 9
    slip = torch.rand(BATCH, width, generator=gen) < 0.05
    body = torch.where(slip, torch.full_like(body, 8), body)
    length = torch.randint(width // 2, width + 1, (BATCH,), generator=gen)
    return body, length


def masks(length, width):
    causal = torch.full((width, width), float("-inf")).triu(1)
    edge = torch.zeros(len(length), 1, 1, width)
    edge.masked_fill_((torch.arange(width) >= length[:, None])[:, None, None, :], float("-inf"))
    full = causal + edge
    full.diagonal(dim1=-2, dim2=-1).zero_()       # a column past the edge still sees itself
    return full


def shard(model, mesh):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(40)
    model = shard(ChartModel(), mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    gen = torch.Generator().manual_seed(500 + rank)
    width = None
    for step in range(1, STEPS + 1):
        width = CURRICULUM.get(step, width)
        chart, length = charts(width, gen)
        ids = torch.cat([torch.full((BATCH, 1), 9), chart[:, :-1]], 1)
        logits = model(ids, masks(length, width)).float()
        worn = torch.arange(width) < length[:, None]
        loss = F.cross_entropy(logits[worn], chart[worn], reduction="sum")
        opt.zero_grad()
        (loss / BATCH).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0).full_tensor()
        opt.step()
        both = loss.detach().clone()
        dist.all_reduce(both)
        if rank == 0:
            print(f"{step:3d} | width {width:2d} | nats {both.item():10.4f} | gnorm {norm.item():8.4f}", flush=True)
    total = sum(p.full_tensor().double().sum().item() for p in model.parameters())
    if rank == 0:
        print(f"checksum {total:.5f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
