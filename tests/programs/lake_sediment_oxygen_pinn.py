"""PINN for oxygen in lake sediment:  D u'' = k u^(1/2)  (half-order respiration), u(0) = 1 at the sediment surface.

Adam first finds the uppermost layer, on random points and with the microelectrode's readings; L-BFGS then polishes on
a regular mesh over the whole core, down to the depth where the oxygen is used up.
"""
import torch

torch.set_default_dtype(torch.float64)
PENETRATION = 2.5                                   # mm; the exact profile is (1 - z / PENETRATION)^4
RATE = 12.0 / PENETRATION ** 2                      # k / D
ADAM_STEPS, LBFGS_STEPS = 26, 10
UPPER, CORE = 0.8, 3.0


class Oxygen(torch.nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.mlp = torch.nn.Sequential(torch.nn.Linear(1, width), torch.nn.Tanh(), torch.nn.Linear(width, width),
                                       torch.nn.Tanh(), torch.nn.Linear(width, 1))

    def forward(self, z):
        return 1.0 - z * torch.nn.functional.softplus(self.mlp(z / CORE))


def derivatives(model, z):
    u = model(z)
    (d1,) = torch.autograd.grad(u.sum(), z, create_graph=True)
    (d2,) = torch.autograd.grad(d1.sum(), z, create_graph=True)
    return u, d1, d2


def residual(model, z):
    u, _, d2 = derivatives(model, z)
    respiration = RATE * u ** 0.5
    return d2 - respiration


def electrode(gen, n=7):
    z = torch.linspace(0.1, 0.7, n).unsqueeze(1)
    return z, (1 - z / PENETRATION) ** 4 + 0.003 * torch.randn(n, 1, generator=gen)


def objective(model, z, readings):
    depth, value = readings
    return 0.003 * residual(model, z).square().mean() + (model(depth) - value).square().mean()


def adam_phase(model, readings, gen):
    opt = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    for k in range(1, ADAM_STEPS + 1):
        z = (UPPER * torch.rand(64, 1, generator=gen)).requires_grad_()
        loss = objective(model, z, readings)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"adam  {k:3d}  objective {loss.item():.10e}", flush=True)


def lbfgs_phase(model, readings):
    opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=6, history_size=8)
    mesh = torch.linspace(0.0, CORE, 96).unsqueeze(1).requires_grad_()

    def closure():
        opt.zero_grad()
        loss = objective(model, mesh, readings)
        loss.backward()
        return loss

    for k in range(1, LBFGS_STEPS + 1):
        loss = opt.step(closure)
        print(f"lbfgs {k:3d}  objective {loss.item():.10e}", flush=True)


def surface_flux(model):
    """-u'(0); 1.6 for the exact profile."""
    _, d1, _ = derivatives(model, torch.zeros(1, 1, requires_grad=True))
    return -d1.item()


def main():
    torch.manual_seed(1931)
    gen = torch.Generator().manual_seed(1935)
    model, readings = Oxygen(), electrode(gen)
    adam_phase(model, readings, gen)
    print(f"flux at the surface {surface_flux(model):.8f}", flush=True)
    lbfgs_phase(model, readings)
    print(f"{sum(p.abs().sum().item() for p in model.parameters()):.8f}", flush=True)


if __name__ == "__main__":
    main()
