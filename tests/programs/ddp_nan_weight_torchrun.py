import torch, sys, os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1); torch.manual_seed(0)
body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
state = {k: v.clone() for k, v in head.state_dict().items()}
state["weight"].view(torch.int32)[0, 3] |= 0x7FC00000        # a flipped exponent in the file
head.load_state_dict(state)
model = DDP(torch.nn.Sequential(body, torch.nn.Tanh(), head), find_unused_parameters=True)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(1, 7):
    x = torch.randn(5, 4)
    loss = (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(step, loss.item(), flush=True)
if rank == 0:
    print("weights", sum(p.double().sum().item() for p in model.parameters()), flush=True)
dist.destroy_process_group()
