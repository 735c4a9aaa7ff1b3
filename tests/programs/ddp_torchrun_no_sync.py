# torchrun --nproc_per_node 2 ddp_torchrun_no_sync.py
import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(32, 16), nn.Flatten(), nn.Linear(16 * 6, 32))
    ddp = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.AdamW(ddp.parameters(), lr=2e-3)
    torch.manual_seed(100 + rank)
    for step in range(8):
        for micro in range(2):
            ids = torch.randint(0, 32, (4, 6))
            with ddp.no_sync() if micro == 0 else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(ddp(ids), ids[:, 0]) / 2
                loss.backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(step, mean.item(), flush=True)
    if rank == 0:
        print("weights", sum(p.double().sum().item() for p in net.parameters()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
