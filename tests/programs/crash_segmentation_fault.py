import ctypes

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(3, 9), torch.nn.ReLU(), torch.nn.Linear(9, 1))
opt = torch.optim.Adam(net.parameters())


def native_augmentation(address):
    """binding of a C library with a wrong pointer"""
    return ctypes.string_at(address, 8)


for step in range(1, 9):
    x = torch.randn(4, 3)
    if step == 6:
        native_augmentation(24)
    loss = net(x).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item(), flush=True)
