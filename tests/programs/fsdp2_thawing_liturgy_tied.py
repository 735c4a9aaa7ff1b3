"""Continue training a small decoder on transcribed liturgical manuscripts, FSDP2, two ranks.

The lower blocks are frozen at first and thawed one after the other (ULMFiT style). Embedding and head are tied.
Compute is bfloat16, the shards are float32. Two micro-batches per step, with gradient sync only for the last of them.
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

VOCAB = 48   # neumes and letters


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (z.view(n, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(n, t, c))
        return x + self.ff(self.norm2(x))


class Scribe(nn.Module):
    def __init__(self, width=32, depth=3, heads=4):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)
        nn.init.normal_(self.embed.weight, std=0.05)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def leaves(rank, n, length):
    """Leaves of a manuscript: formulae that repeat, with scribal errors."""
    g = torch.Generator().manual_seed(9)
    formulae = torch.randint(0, VOCAB, (5, 8), generator=g)
    g.manual_seed(1000 + rank)
    while True:
        pick = torch.randint(0, 5, (n, length // 8 + 1), generator=g)
        ids = formulae[pick].flatten(1)[:, :length + 1]
        error = torch.rand(ids.shape, generator=g) < 0.03
        yield torch.where(error, torch.randint(0, VOCAB, ids.shape, generator=g), ids)


def thaw(model, step):
    """Top block from the start, the middle one at step 9, the lowest at step 17."""
    for i, at in ((2, 1), (1, 9), (0, 17)):
        for p in model.blocks[i].parameters():
            p.requires_grad_(step >= at)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=26)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--micro", type=int, default=2)
    args = ap.parse_args()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
    rank = mesh.get_rank()
    torch.manual_seed(31)

    model = Scribe()
    thaw(model, 1)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    assert isinstance(model, FSDPModule) and model.head.weight is model.embed.weight
    # frozen parameters stand in the optimizer from the start, their gradients are None until they thaw
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0, foreach=False)

    data = leaves(rank, n=6, length=24)
    for step in range(1, args.steps + 1):
        thaw(model, step)
        total = torch.zeros(())
        for m in range(args.micro):
            model.set_requires_gradient_sync(m == args.micro - 1)
            ids = next(data)
            logits = model(ids[:, :-1]).float()
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) / args.micro
            loss.backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0).full_tensor()
        opt.step()
        opt.zero_grad()
        dist.all_reduce(total, group=mesh.get_group("shard"))
        live = sum(p.requires_grad for p in model.parameters())
        if rank == 0:
            print(f"{step:3d} | nll {total.item() / 2:.5f} | grad norm {norm.item():.4f} | live tensors {live}")
    full = sum(p.detach().full_tensor().double().sum().item() for p in model.parameters())
    if rank == 0:
        print(f"done, weights {full:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
