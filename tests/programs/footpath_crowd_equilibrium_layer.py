"""Does a footpath junction jam?  The crowd settles to an equilibrium, found by fixed-point
iteration; the gradient comes from the implicit function theorem, with a small Krylov-type solve."""
import torch
from torch import nn

SOLVE_FORWARD = 30
SOLVE_BACKWARD = 8


class CrowdEquilibrium(torch.autograd.Function):
    """z* = tanh(z* W^T + u).  Backward: solve (I - J^T) v = g by minimal-residual steps."""

    @staticmethod
    def forward(ctx, u, weight):
        z = torch.zeros_like(u)
        for _ in range(SOLVE_FORWARD):
            z = torch.tanh(z @ weight.T + u)
        ctx.save_for_backward(z, weight)
        return z

    @staticmethod
    def backward(ctx, g):
        z, weight = ctx.saved_tensors
        d = 1.0 - z * z

        def adjoint(v):
            return v - (v * d) @ weight

        v = g.clone()
        r = g - adjoint(v)
        for _ in range(SOLVE_BACKWARD):
            ar = adjoint(r)
            size = (r * ar).sum() / (ar * ar).sum()
            v = v + size * r
            r = r - size * ar
        grad_u = v * d
        return grad_u, grad_u.T @ z


class Junction(nn.Module):
    def __init__(self, n_in, width):
        super().__init__()
        self.inflow = nn.Linear(n_in, width)
        self.coupling = nn.Parameter(0.25 * torch.randn(width, width) / width ** 0.5)

    def forward(self, x):
        return CrowdEquilibrium.apply(self.inflow(x), self.coupling)


class JamNet(nn.Module):
    def __init__(self, n_in=10, width=24):
        super().__init__()
        self.junction = Junction(n_in, width)
        self.readout = nn.Linear(width, 1)

    def forward(self, x):
        return self.readout(self.junction(x)).squeeze(-1)


def junctions(n, gen):
    """Flows on ten arms; a junction jams where the inflow outweighs the outflow clearly."""
    w = torch.tensor([1.0, -1.0] * 5)
    x = torch.randn(4 * n, 10, generator=gen)
    s = x @ w
    keep = s.abs() > 1.2
    x, s = x[keep][:n], s[keep][:n]
    return x, torch.sign(s)


def squared_hinge(score, y):
    return torch.relu(1.0 - y * score).square().mean()


def batches(x, y, size, steps, gen):
    """Shuffled epochs, cut off after so many steps."""
    done = 0
    while True:
        order = torch.randperm(len(x), generator=gen)
        for k in range(0, len(x) - size + 1, size):
            done += 1
            yield done, x[order[k:k + size]], y[order[k:k + size]]
            if done == steps:
                return


def train(steps=37):
    torch.manual_seed(17)
    gen = torch.Generator().manual_seed(23)
    x, y = junctions(240, gen)
    model = JamNet()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-3)
    for step, bx, by in batches(x, y, 16, steps, gen):
        loss = squared_hinge(model(bx), by)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.8f}", flush=True)
    return model


if __name__ == "__main__":
    trained = train()
    print(sum(p.detach().double().abs().sum().item() for p in trained.parameters()), flush=True)
