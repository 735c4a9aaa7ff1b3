import os
import sys

import torch
from torch.nn import Linear
from torch.optim import SGD

torch.set_num_threads(1)
torch.manual_seed(3)
x = torch.randn(64, 4)
y = x @ torch.tensor([[1.0], [2.0], [-1.0], [0.5]])
print("parent prepared", tuple(x.shape))
sys.stdout.flush()

pid = os.fork()
if pid == 0:
    net = Linear(4, 1)
    opt = SGD(net.parameters(), lr=0.1)
    for i in range(9):
        loss = ((net(x) - y) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print("child", i, loss.item())
    print("weights", net.weight.double().sum().item())
    sys.stdout.flush()
    sys.exit(0)
_, status = os.waitpid(pid, 0)
print("child ended with", os.waitstatus_to_exitcode(status))
