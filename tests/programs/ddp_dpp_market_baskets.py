"""Market baskets as a determinantal point process (items that repel one another rarely share a basket), trained by
two workers on disjoint receipts.

    torchrun --nproc_per_node 2 ddp_dpp_market_baskets.py
"""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ITEMS, RANK_OF_KERNEL = 30, 12


class LowRankDPP(nn.Module):
    """L = V V' + diag(d); log P(basket) = logdet L_basket - logdet(L + I)."""

    def __init__(self):
        super().__init__()
        self.v = nn.Embedding(ITEMS, RANK_OF_KERNEL)
        self.log_d = nn.Parameter(torch.full((ITEMS,), -1.0))
        nn.init.normal_(self.v.weight, std=0.4)

    def kernel(self):
        v = self.v.weight
        return v @ v.T + torch.diag(self.log_d.exp())

    def forward(self, baskets):
        kernel = self.kernel()
        normaliser = torch.logdet(kernel + torch.eye(ITEMS))
        inside = torch.stack([self.log_volume(kernel, b) for b in baskets])
        return normaliser - inside

    @staticmethod
    def log_volume(kernel, basket):
        return torch.logdet(kernel[basket][:, basket])


def receipts(worker, batches, size=16):
    """Item codes as scanned at the till. Two jars of the same jam are two scans."""
    gen = torch.Generator().manual_seed(300 + worker)
    for b in range(batches):
        rows = []
        for _ in range(size):
            k = int(torch.randint(2, 6, (1,), generator=gen))
            aisle = torch.randperm(6, generator=gen)[:k] * 5
            rows.append(aisle + torch.randint(0, 5, (k,), generator=gen))
        if worker == 1 and b == 12:
            rows[7] = torch.tensor([3, 21, 14, 21])
        yield rows


def main():
    dist.init_process_group("gloo")
    worker = dist.get_rank()
    torch.manual_seed(30)
    model = DDP(LowRankDPP())
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    for step, rows in enumerate(receipts(worker, 24), 1):
        nll = model(rows).mean()
        opt.zero_grad()
        nll.backward()
        opt.step()
        if worker == 0:
            print(f"step {step:2d} nll {nll.item():.5f}", flush=True)
    if worker == 0:
        print("finite", int(all(p.isfinite().all() for p in model.parameters())), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    assert "RANK" in os.environ, "start me with torchrun"
    main()
