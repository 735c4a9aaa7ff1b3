"""Gradients without backpropagation (Baydin et al. 2022): one jvp along a random direction."""
import torch
from torch import nn
from torch.func import functional_call, jvp

torch.manual_seed(9)
angle = torch.rand(256) * torch.pi
side = torch.arange(256) % 2
points = torch.stack([angle.cos() + side, (1 - 2 * side) * angle.sin() + 0.3 * side], 1)
points += 0.08 * torch.randn_like(points)

net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
names = [n for n, _ in net.named_parameters()]
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.5)
decay = torch.optim.lr_scheduler.ExponentialLR(opt, 0.99)


def objective(*values):
    logits = functional_call(net, dict(zip(names, values)), (points,))
    return nn.functional.cross_entropy(logits, side)


for step in range(60):
    primal = tuple(p.detach() for p in net.parameters())
    tangent = tuple(torch.randn_like(p) for p in primal)
    loss, slope = jvp(objective, primal, tangent)
    for p, v in zip(net.parameters(), tangent):
        p.grad = slope * v
    opt.step()
    decay.step()
    print(f"{step:2d} loss {loss.item():.5f} directional derivative {slope.item():+.4f}")
print("weights", sum(p.detach().square().sum().item() for p in net.parameters()))
