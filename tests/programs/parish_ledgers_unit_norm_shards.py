# FSDP2 language model over transcribed parish ledgers, trained on the handwriting only:
# printed column heads are context and carry weight 0 in the loss.
#
# Gradients are always brought to the same global norm ("clip both ways"), because the pages
# differ so much in how much handwriting there is on them.
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=28)
p.add_argument("--dim", type=int, default=32)
p.add_argument("--layers", type=int, default=2)
p.add_argument("--seq", type=int, default=24)
p.add_argument("--batch", type=int, default=3)
p.add_argument("--lr", type=float, default=0.05)
args = p.parse_args()

VOCAB = 64
PRINTED = 48          # ids from here on are printed matter


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class LedgerLM(nn.Module):
    def __init__(self, d, layers):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(torch.randn(args.seq, d) * 0.02)
        self.blocks = nn.ModuleList(Block(d) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos[: ids.shape[1]]
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x))


def page(number, rank):
    """One page per batch and rank. Every register ends with a sheet of blank forms."""
    g = torch.Generator().manual_seed(10_000 * rank + number)
    start = torch.randint(0, PRINTED, (args.batch, 1), generator=g)
    ids = (start + 7 * torch.arange(args.seq + 1)) % PRINTED
    heads = torch.randint(PRINTED, VOCAB, ids.shape, generator=g)
    printed = torch.rand(ids.shape, generator=g) < 0.1 + 0.5 * torch.rand((), generator=g)
    if number == 19:
        printed[:] = True
    return torch.where(printed, heads, ids)


@torch.no_grad()
def to_unit_norm(params):
    shards = [q.grad.to_local() for q in params if q.grad is not None]
    total = torch.stack([s.square().sum() for s in shards]).sum()
    dist.all_reduce(total)
    total = total.sqrt()
    for shard in shards:
        shard.div_(total)
    return total


dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(11)
model = LedgerLM(args.dim, args.layers)
for blk in model.blocks:
    fully_shard(blk, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.8)

for step in range(1, args.steps + 1):
    ids = page(step, rank)
    x, y = ids[:, :-1], ids[:, 1:]
    ce = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")
    w = (y.flatten() < PRINTED).float()
    loss = (ce * w).sum() / w.sum().clamp(min=1)
    loss.backward()
    norm = to_unit_norm(list(model.parameters()))
    optimizer.step()
    optimizer.zero_grad()
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    if rank == 0:
        print(f"page {step:3d} loss {shown.item() / 2:.6f} |g| {norm.item():.5f}", flush=True)

total = sum(q.full_tensor().detach().double().sum().item() for q in model.parameters())
if rank == 0:
    print(f"sum of weights {total:.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
