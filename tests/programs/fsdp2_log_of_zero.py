import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)
mesh = dist.init_device_mesh("cpu", (world,))


class Attractor(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.proj = nn.Linear(d, d, bias=False)

    def forward(self, x):
        return torch.log(torch.relu(self.proj(x)).sum(-1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(5, 12, bias=False)
        self.energy = Attractor(12)

    def forward(self, x):
        return self.energy(torch.tanh(self.inp(x)))


net = Net()
fully_shard(net.energy, mesh=mesh)
fully_shard(net, mesh=mesh)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
torch.manual_seed(rank)
for step in range(1, 13):
    x = torch.randn(6, 5)
    if step >= 6 and rank == 1:
        x[2] = 0.0           # its second shard has empty records
    target = x[:, 0]
    loss = (net(x) - target).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    seen = torch.tensor(float(torch.isfinite(loss)))
    dist.all_reduce(seen)
    if rank == 0:
        print(step, loss.item(), int(seen.item()), flush=True)
total = sum(p.full_tensor().double().sum().item() for p in net.parameters())
if rank == 0:
    print("weights", total, flush=True)
dist.destroy_process_group()
