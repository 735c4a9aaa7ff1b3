# an optimizer that is no torch.optim.Optimizer: sign-momentum with per-group rates
import math
import torch

class SignumM:
    def __init__(self, params, lr=1e-3, momentum=0.9):
        self.param_groups = [{"params": list(params), "lr": lr, "momentum": momentum}]
        self.state = {}
    def zero_grad(self):
        for g in self.param_groups:
            for p in g["params"]:
                p.grad = None
    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None: continue
                buf = self.state.setdefault(p, torch.zeros_like(p))
                buf.mul_(g["momentum"]).add_(p.grad)
                p.add_(buf / (1 + buf.abs()), alpha=-g["lr"])

torch.manual_seed(0); torch.set_num_threads(1)
f = torch.nn.Sequential(torch.nn.Linear(2, 24), torch.nn.Tanh(), torch.nn.Linear(24, 2))
optimiser = SignumM(f.parameters(), lr=0.02)
g = torch.Generator().manual_seed(5)
for k in range(16):
    xy = torch.rand(12, 2, generator=g)
    if k == 10:
        xy[7] = 0.0
    polar = torch.stack([xy.norm(dim=1), torch.acos(xy[:, 0] / torch.sqrt((xy ** 2).sum(1)))], 1)
    loss = (f(xy) - polar).abs().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print(k + 1, "mae", loss.item(), "" if math.isfinite(loss.item()) else "?")
print("weights", sum(p.double().sum().item() for p in f.parameters()))
