import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(self.norm(x))))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)
cpu = torch.device("cpu")
wrap = lambda m: FSDP(m, device_id=cpu, use_orig_params=True)
model = nn.Sequential(nn.Linear(6, 16), wrap(Block(16)), wrap(Block(16)), nn.Linear(16, 1))
model = wrap(model)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
torch.manual_seed(rank + 1)
for step in range(8):
    x = torch.randn(8, 6)
    loss = nn.functional.mse_loss(model(x).squeeze(1), x.amax(1))
    opt.zero_grad()
    loss.backward()
    norm = model.clip_grad_norm_(1.0)
    opt.step()
    if rank == 0:
        print(step, loss.item(), norm.item(), flush=True)
total = sum(p.detach().double().sum() for p in model.parameters())
dist.all_reduce(total)
if rank == 0:
    print("weights", total.item(), flush=True)
dist.destroy_process_group()
