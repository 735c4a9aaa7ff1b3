import torch
from torch import autograd

torch.manual_seed(53)
torch.set_num_threads(1)
W = torch.randn(4, 6, requires_grad=True)


def power_mean(v, p=2.0):
    return v.abs().pow(p).mean(-1).pow(1 / p)


rate = 0.02
for it in range(1, 15):
    x = torch.randn(12, 6)
    if it == 10:
        x[7] = 0.0      # a dead channel in the recording
    loss = (power_mean(x @ W.T) - x[:, 0].abs()).square().mean()
    (g,) = autograd.grad(loss, (W,))
    W = (W - rate * g).detach().requires_grad_()
    print("it", it, loss.item(), W.abs().max().item())
print("weights", W.double().sum().item())
