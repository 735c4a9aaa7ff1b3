# Heat in a quenched rod, u_t = kappa * u_xx on (0, 1), left end held at 0; everything with torch.func
import torch
from torch.func import functional_call, grad, grad_and_value, vmap

torch.manual_seed(3)
KAPPA, LR, HEAVY = 0.05, 1e-3, 0.8
net = torch.nn.Sequential(
    torch.nn.Linear(2, 20), torch.nn.Tanh(), torch.nn.Linear(20, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1))
theta = {name: p.detach().clone() for name, p in net.named_parameters()}


def temperature(theta, x, t):
    raw = functional_call(net, theta, (torch.stack([x, t]).unsqueeze(0),))
    lift = x ** 1.5
    return x + lift * raw[0, 0]


du_dt = grad(temperature, argnums=2)
du_dx = grad(temperature, argnums=1)
d2u_dx2 = grad(du_dx, argnums=1)


def residual(theta, x, t):
    return du_dt(theta, x, t) - KAPPA * d2u_dx2(theta, x, t)


def objective(theta, xs, ts, x0, tb):
    interior = vmap(residual, (None, 0, 0))(theta, xs, ts)
    start = vmap(temperature, (None, 0, None))(theta, x0, torch.tensor(0.0)) - torch.sin(1.57079632 * x0)
    tip = vmap(du_dx, (None, None, 0))(theta, torch.tensor(1.0), tb)
    return interior.square().mean() + 5 * start.square().mean() + tip.square().mean()


def collocation(step, n=40):
    xs, ts = torch.rand(n) * 0.96 + 0.02, torch.rand(n)
    if step >= 12:
        # second stage: a regular mesh along the rod
        xs = torch.linspace(0, 1, n)[torch.randperm(n)]
    return xs, ts, torch.rand(16) * 0.96 + 0.02, torch.rand(8)


momentum = {k: torch.zeros_like(v) for k, v in theta.items()}
for step in range(1, 31):
    slopes, value = grad_and_value(objective)(theta, *collocation(step))
    for k in theta:
        momentum[k] = HEAVY * momentum[k] + slopes[k]
        theta[k] = theta[k] - LR * momentum[k]
    stage = "mesh" if step >= 12 else "random"
    print(f"{step:3d} {stage:7s} residual+data = {float(value):.6f}")

print("theta squared, summed:", float(sum(v.square().sum() for v in theta.values())))
