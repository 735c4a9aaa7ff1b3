# torchrun --standalone --nproc_per_node 2 ddp_half_compressed.py
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(50)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 49, 5))
    ddp = DistributedDataParallel(net)
    ddp.register_comm_hook(None, fp16_compress_hook)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    data = torch.Generator().manual_seed(100 + rank)
    palette = torch.linspace(-1, 1, 15).view(5, 3)
    for step in range(20):
        label = torch.randint(0, 5, (16,), generator=data)
        image = palette[label][:, :, None, None] + torch.randn(16, 3, 16, 16, generator=data)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(ddp(image).float(), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step + 1} loss {mean.item() / 2:.6f}", flush=True)
    if rank == 0:
        print("checksum", sum(p.abs().sum().item() for p in net.parameters()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
