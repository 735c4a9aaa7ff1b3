# Concentration inside a round catalyst bead:  u'' + (2/r) u' = phi^2 u,  u(1) = 1.
# First L-BFGS on a fixed grid, then Adam on points drawn anew in each step.
import torch
from torch import nn

torch.manual_seed(2)
PHI = 2.5
LBFGS_STEPS = 9
ADAM_STEPS = 26
DRAW = 14
probe = torch.Generator().manual_seed(37)


class Bead(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.a = nn.Linear(1, width)
        self.b = nn.Linear(width, width)
        self.c = nn.Linear(width, 1)

    def forward(self, r):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(r)))))


bead = Bead()


def derivative(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def residual(r):
    r = r.clone().requires_grad_(True)
    u = bead(r)
    u_r = derivative(u, r)
    u_rr = derivative(u_r, r)
    curvature = 2.0 * u_r / r
    return u_rr + curvature - PHI ** 2 * u


def objective(r):
    surface = bead(torch.ones(1, 1)) - 1.0
    return residual(r).pow(2).mean() + 20.0 * surface.pow(2).sum()


def exact(r):
    return torch.sinh(PHI * r) / (r * torch.sinh(torch.tensor(PHI)))


def tomograph_points():
    """Voxels of the tomograph have eight bits of radius; the residual is asked where voxels are."""
    voxel = torch.randint(0, 256, (DRAW, 1), generator=probe)
    return voxel.float() / 255.0


def error():
    with torch.no_grad():
        r = torch.linspace(0.1, 1.0, 19)[:, None]
        return (bead(r) - exact(r)).abs().max().item()


# ---- stage one
grid = torch.linspace(1 / 255, 1.0, 40)[:, None]
lbfgs = torch.optim.LBFGS(bead.parameters(), lr=0.8, max_iter=6, history_size=12, line_search_fn="strong_wolfe")


def closure():
    lbfgs.zero_grad()
    value = objective(grid)
    value.backward()
    return value


count = 0
for _ in range(LBFGS_STEPS):
    value = lbfgs.step(closure)
    count += 1
    print("%3d  lbfgs  %.8f" % (count, value.item()), flush=True)
print("after the first stage the largest error is %.6f" % error(), flush=True)

# ---- stage two
adam = torch.optim.Adam(bead.parameters(), lr=1e-4)
for _ in range(ADAM_STEPS):
    points = tomograph_points()
    adam.zero_grad()
    value = objective(points)
    value.backward()
    adam.step()
    count += 1
    print("%3d  adam   %.8f" % (count, value.item()), flush=True)

print("largest error")
print("%.8f" % error())
print("weights")
print("%.8f" % sum(p.detach().abs().sum().item() for p in bead.parameters()))
