import os
import resource

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
with open("/proc/self/statm") as f:
    used = int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
limit = used + (1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))      # the container has 1 GiB more and no swap

net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
opt = torch.optim.SGD(net.parameters(), lr=1e-3)


def pairwise(h):
    return (h[:, None, :] - h[None, :, :]).abs().sum(-1)


for step, n in enumerate([32, 64, 48, 80, 4096, 32], start=1):
    h = net[1](net[0](torch.randn(n, 64)))
    loss = pairwise(h).mean() + net[2](h).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, n, loss.item(), flush=True)
