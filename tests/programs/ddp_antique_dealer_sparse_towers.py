"""Two-tower retrieval for an antiques market place: buyers on the left, lots on the right.

The buyer tower is one big embedding bag with sparse gradients (most buyers do not show up in a batch), the lot
tower is dense. Each is wrapped in its own DistributedDataParallel and has its own optimizer, because SparseAdam
refuses dense gradients. The dense tower sends its gradients as bfloat16 by a communication hook of our own that also
keeps what was rounded away (error feedback).

    torchrun --standalone --nproc_per_node 2 ddp_antique_dealer_sparse_towers.py
"""
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

N_BUYERS, N_CATEGORIES, DIM, BATCH, STEPS = 600, 12, 16, 32, 36


class BuyerTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.history = nn.EmbeddingBag(N_BUYERS, DIM, mode="mean", sparse=True)

    def forward(self, ids, offsets):
        return F.normalize(self.history(ids, offsets), dim=-1)


class LotTower(nn.Module):
    """Category, estimate and age of a lot. The temperature lives here since this is the dense side."""

    def __init__(self):
        super().__init__()
        self.category = nn.Embedding(N_CATEGORIES, 8)
        self.mix = nn.Sequential(nn.Linear(8 + 2, 32), nn.Tanh(), nn.Linear(32, DIM))
        self.log_temp = nn.Parameter(torch.tensor(-1.0))          # a scalar

    def forward(self, category, numbers):
        x = torch.cat([self.category(category), numbers], -1)
        return F.normalize(self.mix(x), dim=-1), self.log_temp.exp()


@dataclass
class RoundedMean:
    """State of the hook: what has not been sent yet, by bucket."""
    world: int
    left_over: dict = field(default_factory=dict)
    sent: int = 0


def bf16_with_feedback(state: RoundedMean, bucket: dist.GradBucket):
    flat = bucket.buffer()
    rest = state.left_over.get((bucket.index(), flat.numel()))
    full = flat / state.world if rest is None else flat / state.world + rest
    small = full.to(torch.bfloat16)
    state.left_over[(bucket.index(), flat.numel())] = full - small.float()
    state.sent += small.numel()
    future = dist.all_reduce(small, async_op=True).get_future()

    def unpack(f):
        out = bucket.buffer()
        out.copy_(f.value()[0])
        return out

    return future.then(unpack)


def batches(rank):
    g = torch.Generator().manual_seed(100 + rank)
    taste = torch.randint(0, N_CATEGORIES, (N_BUYERS,), generator=torch.Generator().manual_seed(5))
    while True:
        # each example: a bag of 1..4 buyers that bid on the lot, all of about the same taste
        cat = torch.randint(0, N_CATEGORIES, (BATCH,), generator=g)
        ids, offsets = [], []
        for c in cat.tolist():
            pool = (taste == c).nonzero().flatten()
            n = int(torch.randint(1, 5, (1,), generator=g))
            offsets.append(len(ids))
            ids += pool[torch.randint(0, len(pool), (n,), generator=g)].tolist()
        yield torch.tensor(ids), torch.tensor(offsets), cat, torch.randn(BATCH, 2, generator=g)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(17)
    buyers = DDP(BuyerTower())
    lots = DDP(LotTower(), gradient_as_bucket_view=True, bucket_cap_mb=1)
    hook = RoundedMean(world)
    lots.register_comm_hook(hook, bf16_with_feedback)
    sparse_opt = torch.optim.SparseAdam(buyers.parameters(), lr=0.05)
    dense_opt = torch.optim.AdamW(lots.parameters(), lr=0.01)

    stream = batches(rank)
    for step in range(1, STEPS + 1):
        ids, offsets, cat, numbers = next(stream)
        b = buyers(ids, offsets)
        l, temp = lots(cat, numbers)
        scores = b @ l.T / temp
        # other lots of the same category are not negatives
        same = (cat[:, None] == cat[None, :]) & ~torch.eye(BATCH, dtype=torch.bool)
        scores = scores.masked_fill(same, float("-inf"))
        loss = F.cross_entropy(scores, torch.arange(BATCH))
        sparse_opt.zero_grad(set_to_none=True)
        dense_opt.zero_grad(set_to_none=False)                    # the gradients are views into the buckets
        loss.backward()
        assert buyers.module.history.weight.grad.is_sparse
        sparse_opt.step()
        dense_opt.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            touched = buyers.module.history.weight.grad.coalesce().indices().shape[1]
            print(f"step {step:2d}  in-batch loss {shown.item() / world:.6f}  temp {temp.item():.4f}  buyers touched {touched}")
    if rank == 0:
        total = sum(p.detach().double().sum().item() for p in [*buyers.parameters(), *lots.parameters()])
        print(f"numbers sent by the hook: {hook.sent}, weights {total:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
