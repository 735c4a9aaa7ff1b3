import torch
from torch import nn

# Tension in the strings of a marionette at rest: an equilibrium layer.
# z* = f(z*, x); forward by damped iteration, backward by the Neumann series ("phantom" gradients).

torch.manual_seed(12)
torch.set_num_threads(1)


class Cell(nn.Module):
    def __init__(self, n_in, n):
        super().__init__()
        self.W = nn.Parameter(torch.randn(n, n) * 0.3 / n ** 0.5)
        self.U = nn.Linear(n_in, n)

    def forward(self, z, x):
        return torch.tanh(z @ self.W.t() + self.U(x))


class Equilibrium(nn.Module):
    """Solve without a graph, then take one step with it and hook the linear solve on."""

    def __init__(self, cell, n, max_iter=40, tol=1e-5):
        super().__init__()
        self.cell, self.n, self.max_iter, self.tol = cell, n, max_iter, tol
        self.log = {}

    @torch.no_grad()
    def solve(self, f, z, name):
        trace = []
        for k in range(self.max_iter):
            nxt = f(z)
            # relative residual: the first one is x / 0 = inf since we start at rest; a row
            # without load gives 0 / 0 = nan there.  It only decides whether to stop.
            rel = (nxt - z).norm(dim=1) / z.norm(dim=1)
            trace.append(rel.max().item())
            z = nxt
            if bool((rel < self.tol).all()):
                break
        self.log[name] = (k + 1, trace[0], trace[-1])
        return z

    def forward(self, x):
        z = self.solve(lambda z: self.cell(z, x), x.new_zeros(len(x), self.n), "fwd")
        if not torch.is_grad_enabled():
            return z
        z = self.cell(z, x)
        z0 = z.detach().requires_grad_()
        f0 = self.cell(z0, x)

        def adjoint(g):
            jt = lambda u: torch.autograd.grad(f0, z0, u, retain_graph=True)[0]
            return self.solve_adjoint(jt, g)

        z.register_hook(adjoint)
        return z

    def solve_adjoint(self, jt, g):
        u = torch.zeros_like(g)
        for k in range(self.max_iter):
            with torch.enable_grad():
                nxt = jt(u) + g
            done = (nxt - u).abs().max() < 1e-6
            u = nxt
            if done:
                break
        self.log["bwd"] = k + 1
        return u


class Puppet(nn.Module):
    def __init__(self):
        super().__init__()
        self.eq = Equilibrium(Cell(4, 16), 16)
        self.read = nn.Linear(16, 3)

    def forward(self, x):
        return self.read(self.eq(x))


def poses(n):
    g = torch.Generator().manual_seed(2)
    x = torch.randn(n, 4, generator=g)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin(), x[:, 3].abs()], 1)
    return x, y


net = Puppet()
opt = torch.optim.RMSprop(net.parameters(), lr=2e-3)
x, y = poses(320)
for step in range(40):
    sl = torch.arange(step * 32, step * 32 + 32) % 320
    loss = nn.functional.mse_loss(net(x[sl]), y[sl])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    if step % 2 == 0:
        its, first, last = net.eq.log["fwd"]
        print(f"step {step:2d} mse {loss.item():.6f} fwd {its} (res {first} -> {last:.1e}) bwd {net.eq.log['bwd']}")
with torch.no_grad():
    print("spectral norm", round(torch.linalg.matrix_norm(net.eq.cell.W, 2).item(), 5))
