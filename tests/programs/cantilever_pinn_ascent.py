"""PINN for a heavy string, u'' = q(x), u(0) = u(1) = 0. Second derivatives by autograd twice.

The schedule is the linear decay from the group's heat-equation script; run length doubled for this one.
"""
import math

import torch

torch.manual_seed(0)
torch.set_num_threads(1)

DECAY_STEPS = 30
RUN_STEPS = 64
LR0 = 0.02


def init(sizes):
    params = []
    for a, b in zip(sizes, sizes[1:]):
        params.append((torch.randn(a, b) / math.sqrt(a)).requires_grad_())
        params.append(torch.zeros(b).requires_grad_())
    return params


def mlp(params, x):
    *hidden, w, b = params
    for i in range(0, len(hidden), 2):
        x = torch.tanh(x @ hidden[i] + hidden[i + 1])
    return x @ w + b


def q(x):
    return -(math.pi ** 2) * torch.sin(math.pi * x)


def residual(params, x):
    x = x.requires_grad_(True)
    u = mlp(params, x)
    du, = torch.autograd.grad(u.sum(), x, create_graph=True)
    d2u, = torch.autograd.grad(du.sum(), x, create_graph=True)
    return d2u - q(x)


def lr_at(k):
    return LR0 * (1.0 - k / DECAY_STEPS)


def sgd(params, momentum=0.8):
    """closure optimiser: returns a function that takes one step at the given rate"""
    buf = [torch.zeros_like(p) for p in params]
    opt = torch.optim.SGD(params, lr=LR0, momentum=momentum)

    def step(rate):
        for group in opt.param_groups:
            group["lr"] = rate
        opt.step()
        opt.zero_grad()
    del buf
    return step


def train():
    params = init([1, 24, 24, 1])
    apply = sgd(params)
    edge = torch.tensor([[0.0], [1.0]])
    for k in range(RUN_STEPS):
        x = torch.rand(64, 1)
        pde = residual(params, x).pow(2).mean()
        bc = mlp(params, edge).pow(2).mean()
        loss = 0.05 * pde + bc
        loss.backward()
        apply(lr_at(k))
        print(f"{k + 1:3d} loss {loss.item():.6e} pde {pde.item():.4e} bc {bc.item():.4e}")
    grid = torch.linspace(0, 1, 21)[:, None]
    with torch.no_grad():
        err = (mlp(params, grid) - torch.sin(math.pi * grid)).abs().max()
    print(f"max error {err.item():.4e}")
    print(f"weights {sum(p.detach().double().sum().item() for p in params):.6f}")


if __name__ == "__main__":
    train()
