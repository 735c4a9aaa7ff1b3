# Force matching of argon clusters: a Lennard-Jones pair term plus a small learned correction, all functional.
import torch
from torch.func import grad, vmap

torch.manual_seed(84)
torch.set_default_dtype(torch.float64)

N = 6
SELF = torch.diag(torch.full((N,), float("inf")))       # an atom is infinitely far from itself


def energy(x, theta):
    d = x[:, None] - x[None]
    r2 = (d * d).sum(-1) + SELF
    s6 = (torch.exp(2 * theta["log_sigma"]) / r2) ** 3
    pair = 4 * torch.exp(theta["log_eps"]) * (s6 * s6 - s6)
    near = torch.exp(-r2)
    bump = torch.tanh(near[..., None] * theta["w"] + theta["b"]) @ theta["out"]
    return 0.5 * (pair.sum() + (bump * near).sum())


forces = vmap(grad(lambda x, theta: -energy(x, theta)), in_dims=(0, None))


def clusters(n, spacing, g):
    lattice = torch.tensor([[i, j, k] for i in range(3) for j in range(2) for k in range(1)]).double() * spacing
    return lattice + 0.06 * torch.randn(n, N, 3, generator=g)


g = torch.Generator().manual_seed(7)
truth = {"log_eps": torch.tensor(0.1), "log_sigma": torch.tensor(0.0), "w": torch.ones(4), "b": torch.zeros(4),
         "out": torch.tensor([0.2, -0.1, 0.3, 0.1])}
theta = {"log_eps": torch.tensor(-0.6), "log_sigma": torch.tensor(-0.12), "w": 0.5 * torch.randn(4),
         "b": torch.zeros(4), "out": torch.zeros(4)}
for v in theta.values():
    v.requires_grad_(True)


def loss_on(x):
    return ((forces(x, theta) - forces(x, truth)) ** 2).mean()


gas = clusters(16, 1.35, g)
dense = clusters(16, 1.16, g)
adam = torch.optim.Adam(theta.values(), lr=0.015)
for step in range(1, 23):
    batch = gas if step <= 14 else dense
    adam.zero_grad()
    loss = loss_on(batch)
    loss.backward()
    adam.step()
    print(f"adam  {step:2d} {'gas  ' if batch is gas else 'dense'} {loss.item():.6e}")

lbfgs = torch.optim.LBFGS(theta.values(), max_iter=5, line_search_fn="strong_wolfe")


def closure():
    lbfgs.zero_grad()
    loss = loss_on(dense)
    loss.backward()
    return loss


for step in range(23, 33):
    loss = lbfgs.step(closure)
    print(f"lbfgs {step:2d} dense {loss.item():.6e}")
print("parameters, sum of squares: %.6f" % sum((v.detach() ** 2).sum().item() for v in theta.values()))
