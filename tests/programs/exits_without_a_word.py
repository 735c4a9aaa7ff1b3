import os
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for i in range(20):
    loss = (net(torch.randn(6, 4)) - 1).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    print(i, loss.item(), flush=True)
    if i == 7:
        os._exit(1)
