# Density of a stellar stream on the sky with a small normalizing flow.
# log|det J| is brute force (vmap of jacrev), we only have 2 dims after all.
# The activation is sharpened from leaky to hard in stages ("slope annealing").
import math
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

torch.manual_seed(2024)

class Flow(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.mix = nn.ModuleList([nn.Linear(2, 2) for _ in range(depth)])
        self.slope = 0.5
        with torch.no_grad():
            for m in self.mix:
                m.weight.copy_(torch.eye(2) + 0.1*torch.randn(2, 2))
                m.bias.zero_()

    def forward(self, x):
        for m in self.mix:
            x = nn.functional.leaky_relu(m(x), self.slope)
        return x

# stream: a curved ridge
phi1 = 1.5*torch.randn(128)
stars = torch.stack([phi1, 0.3*phi1**2 - 0.5 + 0.15*torch.randn(128)], dim=1)

flow = Flow()
params = dict(flow.named_parameters())
optim = torch.optim.RMSprop(params.values(), lr=1e-2, centered=True)

def push(p, x):
    return functional_call(flow, p, (x,))

def neg_log_like(p, batch):
    zed = vmap(push, in_dims=(None, 0))(p, batch)
    J = vmap(jacrev(push, argnums=1), in_dims=(None, 0))(p, batch)
    det = J[:, 0, 0]*J[:, 1, 1] - J[:, 0, 1]*J[:, 1, 0]
    volume = det.abs().log()
    base = -0.5*(zed**2).sum(1) - math.log(2*math.pi)
    return -(base + volume).mean()

stages = [0.5, 0.4, 0.3, 0.0]
for it in range(1, 53):
    flow.slope = stages[min((it - 1)//10, 3)]
    optim.zero_grad()
    nll = neg_log_like(params, stars)
    nll.backward()
    optim.step()
    print('it %d slope %.1f nll %.7f' % (it, flow.slope, nll.item()))

print('final', sum(v.abs().sum().item() for v in params.values()))
