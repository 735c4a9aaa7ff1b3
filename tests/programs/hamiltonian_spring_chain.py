"""Separable Hamiltonian network, H(q, p) = T(|p|) + V(q), on recorded motions of a ring of springs."""
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

N = 4


def simulate(q, p, steps, dt=0.05, every=2):
    rows = []
    for k in range(steps * every):
        if k % every == 0:
            stretch = q - q.roll(1)
            force = -(stretch - stretch.roll(-1)) - 0.3 * q
            rows.append((q, p, p.clone(), force))
        stretch = q - q.roll(1)
        p = p + dt * (-(stretch - stretch.roll(-1)) - 0.3 * q)
        q = q + dt * p
    return [torch.stack(c) for c in zip(*rows)]


def record():
    g = torch.Generator().manual_seed(40)
    runs = []
    for k in range(8):
        q = torch.randn(N, generator=g)
        # runs are pushed, no. 5 is drawn aside and let go
        p = torch.zeros(N) if k == 5 else 0.8 * torch.randn(N, generator=g)
        runs.append(simulate(q, p, steps=30))
    return [torch.cat(c) for c in zip(*runs)]


class HNN(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.kinetic = nn.Sequential(nn.Linear(1, width), nn.Softplus(), nn.Linear(width, 1))
        self.potential = nn.Sequential(nn.Linear(N, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, q, p):
        momentum = torch.sqrt((p * p).sum(-1, keepdim=True))
        return (self.kinetic(momentum) + self.potential(q)).squeeze(-1)


def field(params, model, q, p):
    def energy(q1, p1):
        return functional_call(model, params, (q1, p1))
    dh_dq, dh_dp = vmap(grad(energy, argnums=(0, 1)))(q, p)
    return dh_dp, -dh_dq


torch.manual_seed(2)
q, p, qdot, pdot = record()
model = HNN()
params = dict(model.named_parameters())
opt = torch.optim.Adam(params.values(), lr=5e-3)
perm = torch.randperm(len(q), generator=torch.Generator().manual_seed(17))

for i, idx in enumerate(perm.split(12), 1):
    dq, dp = field(params, model, q[idx], p[idx])
    loss = ((dq - qdot[idx]) ** 2).mean() + ((dp - pdot[idx]) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"batch {i:02d}: field error {loss.item():.5f}")

with torch.no_grad():
    print("||w||^2", torch.stack([w.square().sum() for w in params.values()]).sum().item())
