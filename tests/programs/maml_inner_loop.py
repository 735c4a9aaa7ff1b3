"""First sinusoid of every MAML tutorial: gradients of gradients, inner step by autograd.grad."""
import math

import torch
import torch.nn.functional as F

torch.manual_seed(5)
torch.set_num_threads(1)


def init(*shape):
    return (torch.randn(*shape) / math.sqrt(shape[-1])).requires_grad_()


theta = {"w1": init(20, 1), "b1": torch.zeros(20, requires_grad=True), "w2": init(1, 20), "b2": torch.zeros(1, requires_grad=True)}


def net(p, x):
    return F.linear(torch.tanh(F.linear(x, p["w1"], p["b1"])), p["w2"], p["b2"])


def sample_task():
    amplitude, phase = 0.1 + 4.9 * torch.rand(()), math.pi * torch.rand(())
    def draw(k):
        x = torch.rand(k, 1) * 10 - 5
        return x, amplitude * torch.sin(x + phase)
    return draw


meta = torch.optim.Adam(theta.values(), lr=1e-3)
for it in range(12):
    meta.zero_grad()
    total = 0.0
    for _ in range(3):
        task = sample_task()
        x, y = task(5)
        inner = F.mse_loss(net(theta, x), y)
        grads = torch.autograd.grad(inner, list(theta.values()), create_graph=True)
        fast = {k: w - 0.01 * g for (k, w), g in zip(theta.items(), grads)}
        x, y = task(10)
        outer = F.mse_loss(net(fast, x), y) / 3
        outer.backward()
        total += outer.item()
    meta.step()
    print(it, total)
print(sum(w.detach().double().sum().item() for w in theta.values()))
