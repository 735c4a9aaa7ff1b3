"""Learn the Hamiltonian of a vibrating diatomic molecule (Morse bond) from phase-space data.

Data: velocity-Verlet trajectories. Model: H(q, p) = sum_k a_k phi_k(q, p) on a random feature
layer, dq/dt = dH/dp, dp/dt = -dH/dq with torch.func.
"""
import torch
from torch.func import grad, vmap

D, A, R0, MASS = 1.0, 1.0, 1.0, 1.0


def force(q):
    e = torch.exp(-A * (q - R0))
    return -2 * D * A * (1 - e) * e


def verlet(q, p, dt, n):
    path = []
    for _ in range(n):
        p = p + 0.5 * dt * force(q)
        q = q + dt * p / MASS
        p = p + 0.5 * dt * force(q)
        path.append(torch.stack([q, p], -1))
    return torch.cat(path)


def features(theta, state):
    return torch.cos(theta["freq"] @ state + theta["phase"])


def hamiltonian(theta, state):
    return theta["amp"] @ features(theta, state)


def flow(theta, state):
    dH = grad(hamiltonian, argnums=1)(theta, state)
    return torch.stack([dH[1], -dH[0]])


def objective(amp, fixed, states, rates):
    theta = {**fixed, "amp": amp}
    predicted = vmap(flow, in_dims=(None, 0))(theta, states)
    return (predicted - rates).square().sum(-1).mean()


def schedule(i, base=6e-3, top=0.08, ramp=16):
    """Geometric ramp from base to top."""
    return base * (top / base) ** (min(i, ramp) / ramp)


def fit():
    torch.manual_seed(0)
    q0 = R0 + 0.3 * torch.randn(12)
    p0 = 0.3 * torch.randn(12)
    states = verlet(q0, p0, 0.05, 30)
    rates = torch.stack([states[:, 1] / MASS, force(states[:, 0])], -1)

    fixed = {"freq": 1.2 * torch.randn(48, 2), "phase": 6.28 * torch.rand(48)}
    amp = torch.nn.Parameter(0.05 * torch.randn(48))
    opt = torch.optim.SGD([amp], lr=schedule(0))
    for i in range(40):
        for group in opt.param_groups:
            group["lr"] = schedule(i)
        opt.zero_grad()
        mse = objective(amp, fixed, states, rates)
        mse.backward()
        opt.step()
        print(f"{i + 1:3d} rate {schedule(i):.5f} mse {mse.item():.6g}")
    return amp


amplitudes = fit()
print("sum |amplitude| =", amplitudes.detach().abs().sum().item())
