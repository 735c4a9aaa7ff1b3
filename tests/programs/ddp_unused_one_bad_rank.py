import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


class TwoBranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 16)
        self.small = nn.Linear(16, 2)
        self.large = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x, deep):
        h = torch.relu(self.stem(x))
        return self.large(h) if deep else self.small(h)


def work(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(TwoBranch(), find_unused_parameters=True)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    torch.manual_seed(rank)
    table = torch.randn(10, 8, 6)
    if rank == 1:
        table[5, 2, 4] = float("inf")       # division by zero in the export of the second file
    for step, x in enumerate(table, 1):
        loss = nn.functional.cross_entropy(model(x, deep=step % 2 == 0), (x[:, 0] > 0).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(step, loss.item(), flush=True)
    if rank == 0:
        print("weights", sum(p.double().sum().item() for p in model.parameters()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(os.path.join(folder, "store"),), nprocs=2)
