"""Force matching for a pair potential with torch.func: F = -dE/dx, trained against reference forces.

Parameters live in a dict, the optimizer gets their values.
"""
import torch
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)


class PairPotential(torch.nn.Module):
    def __init__(self, n_rbf=8):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.5, 3.0, n_rbf))
        self.mlp = torch.nn.Sequential(torch.nn.Linear(n_rbf, 24), torch.nn.Softplus(), torch.nn.Linear(24, 1))

    def forward(self, x):
        i, j = torch.triu_indices(len(x), len(x), 1)
        d = x[i] - x[j]
        r = torch.sqrt((d * d).sum(-1, keepdim=True))
        return self.mlp(torch.exp(-4.0 * (r - self.centres) ** 2)).sum()


def reference_forces(x):
    def energy(y):
        i, j = torch.triu_indices(len(y), len(y), 1)
        return ((y[i] - y[j]).pow(2).sum(-1) - 2.0).pow(2).sum() * 0.05

    return -vmap(grad(energy))(x)


def trajectory(n):
    frames = torch.rand(n, 4, 3) * 2.5
    frames[57, 3] = frames[57, 0]            # wrapped through the periodic box onto its neighbour
    return frames


frames = trajectory(160)
forces = reference_forces(frames)
model = PairPotential()
params = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
buffers = dict(model.named_buffers())
opt = torch.optim.Adam(params.values(), lr=3e-3)


def energy_of(x, p):
    return functional_call(model, (p, buffers), (x,))


def loss_fn(p, x, f):
    predicted = -vmap(grad(energy_of), in_dims=(0, None))(x, p)
    return (predicted - f).pow(2).mean()


for step, lo in enumerate(range(0, 160, 8)):
    loss = loss_fn(params, frames[lo:lo + 8], forces[lo:lo + 8])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{step}: force mse {loss.item():.6f}")
print("sum", sum(p.abs().sum().item() for p in params.values()))
