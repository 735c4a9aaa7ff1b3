"""Sinking beads in syrups: neural ODE, own RK4, own adjoint (O(1) memory: states are rebuilt backwards)."""
import torch
from torch import nn

T_END, N = 2.0, 40
H = T_END / N


class Drag(nn.Module):
    """dv/dt = -c v - k v^3 + net(v, c~).  c comes with the record, k is a material constant."""

    def __init__(self, dim=3, hidden=16):
        super().__init__()
        self.lift = nn.Linear(dim, hidden)
        self.drop = nn.Linear(hidden, dim)
        self.register_buffer("k", torch.tensor(0.2))

    def forward(self, v, c):
        cubic = self.k * v * v * v
        return self.drop(torch.tanh(self.lift(v))) - c * v - cubic


def rk4(f, y, h):
    k1 = f(y)
    k2 = f([a + h / 2 * b for a, b in zip(y, k1)])
    k3 = f([a + h / 2 * b for a, b in zip(y, k2)])
    k4 = f([a + h * b for a, b in zip(y, k3)])
    return [a + h / 6 * (p + 2 * q + 2 * r + s) for a, p, q, r, s in zip(y, k1, k2, k3, k4)]


class AdjointSolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, field, v0, c, *theta):
        y = [v0]
        for _ in range(N):
            y = rk4(lambda s: [field(s[0], c)], y, H)
        ctx.field = field
        ctx.save_for_backward(y[0], c, *theta)
        return y[0].clone()

    @staticmethod
    def backward(ctx, grad_out):
        vT, c, *theta = ctx.saved_tensors
        field = ctx.field

        def augmented(state):
            v, a = state[0], state[1]
            with torch.enable_grad():
                v = v.detach().requires_grad_()
                dv = field(v, c)
                vjp = torch.autograd.grad(dv, [v, *theta], -a)
            return [dv.detach(), *vjp]

        state = [vT, grad_out] + [torch.zeros_like(p) for p in theta]
        for _ in range(N):
            state = rk4(augmented, state, -H)
        return (None, state[1], None, *state[2:])


class Settling(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = Drag()
        self.readout = nn.Linear(3, 2)

    def forward(self, v0, c):
        vT = AdjointSolve.apply(self.field, v0, c, *self.field.parameters())
        return self.readout(vT)


def beads(gen, shot, n=20):
    v0 = torch.randn(n, 3, generator=gen)
    c = 0.2 + 0.6 * torch.rand(n, 1, generator=gen)
    if shot == 14:
        c[11] = 42.0      # this lab notes its viscosity in poise, not in pascal seconds
    speed = v0 * torch.exp(-c.clamp(max=5) * T_END)
    target = torch.stack([speed.sum(1), speed[:, 0] - speed[:, 2]], 1)
    return v0, c, target


def train(shots=32):
    torch.manual_seed(2024)
    gen = torch.Generator().manual_seed(24)
    model = Settling()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for shot in range(1, shots + 1):
        v0, c, target = beads(gen, shot)
        loss = nn.functional.smooth_l1_loss(model(v0, c), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"shot {shot:2d}  loss {loss.item():.7f}")
    print("total weight", sum(p.detach().sum().item() for p in model.parameters()))


train()
