"""A sweep under one launcher: each rank trains its own model, for as long as it needs. No collective in the loop."""
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(rank)
model = torch.nn.Linear(6, 1)
opt = torch.optim.SGD(model.parameters(), lr=[0.05, 0.2][rank])
for step in range([9, 4][rank]):
    x = torch.randn(16, 6)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print("rank 0", step, loss.item(), flush=True)
dist.barrier()
results = [None, None]
dist.all_gather_object(results, (loss.item(), model.weight.double().sum().item()))
if rank == 0:
    print(os.path.basename(__file__), results, flush=True)
dist.destroy_process_group()
