# started as: python -I isolated_interpreter.py
import sys

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
assert sys.flags.isolated
net = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(8):
    x = torch.randn(10, 3)
    loss = (net(x).squeeze(1) - x.sum(1)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
