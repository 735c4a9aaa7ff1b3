# Retardation coefficients of airgun pellets from their shape, fitted through the
# equation of motion.  Shots come from a ladder test: the charge goes up rung by rung,
# with the spring rifle first and then with the light-gas barrel of the institute.
import torch
from torch import nn
from torch.func import functional_call, grad_and_value

torch.manual_seed(177)

N_STEPS, FLIGHT = 16, 1.2
DT = FLIGHT / N_STEPS


class Retardation(nn.Module):
    def __init__(self, hidden=12):
        super().__init__()
        self.hidden = nn.Linear(3, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, shape):
        return nn.functional.softplus(self.out(torch.tanh(self.hidden(shape))) - 3.5).squeeze(-1)


def fly(k, v0):
    """Explicit integration, returns distance and remaining velocity."""
    x, v = torch.zeros_like(v0), v0
    for _ in range(N_STEPS):
        x = x + DT * v
        drag = k * v * v.abs()
        v = v - DT * drag
    return x, v


def true_k(shape):
    return 0.02 + 0.025 * torch.sigmoid(2 * shape[:, 0] - shape[:, 1])


def ladder(n_rungs, shots, gen):
    for rung in range(n_rungs):
        shape = torch.randn(shots, 3, generator=gen)
        start = 130.0 if rung < 17 else 1100.0
        v0 = start + 12.0 * rung + 4.0 * torch.randn(shots, generator=gen)
        k = true_k(shape)
        x = torch.log1p(k * v0 * FLIGHT) / k
        v = v0 / (1 + k * v0 * FLIGHT)
        yield shape, v0, x * (1 + 0.01 * torch.randn(shots, generator=gen)), v


net = Retardation()
params = {n: p.detach().clone() for n, p in net.named_parameters()}
velocity = {n: torch.zeros_like(p) for n, p in params.items()}


def misfit(params, shape, v0, x_obs, v_obs):
    k = functional_call(net, params, (shape,))
    x, v = fly(k, v0)
    return ((x - x_obs) / 50.0).abs().mean() + ((v - v_obs) / 20.0).abs().mean()


gen = torch.Generator().manual_seed(45)
for shot, batch in enumerate(ladder(36, 20, gen), 1):
    grads, loss = grad_and_value(misfit)(params, *batch)
    for name in params:
        velocity[name].mul_(0.85).add_(grads[name])
        params[name].sub_(0.01 * velocity[name])
    print("rung %2d  v0 %6.1f m/s  misfit %.4f" % (shot, batch[1].mean(), loss))

print("sum of |parameters| = %.4f" % sum(p.abs().sum() for p in params.values()))
