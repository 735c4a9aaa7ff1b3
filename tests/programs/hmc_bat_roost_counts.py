import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, vector_to_parameters

# Bats leaving a roost at dusk, counted every evening: Poisson network, posterior by Hamiltonian Monte Carlo.
gen = torch.Generator().manual_seed(77)
torch.manual_seed(77)

evenings = torch.rand(60, 3, generator=gen) * 2 - 1
truth = 2.0 + 0.9 * evenings[:, 0] - 0.7 * evenings[:, 1] * evenings[:, 2]
counts = torch.poisson(truth.exp(), generator=gen)


class RateNet(nn.Module):
    def __init__(self, hidden=10):
        super().__init__()
        self.inner = nn.Linear(3, hidden)
        self.outer = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x))).squeeze(-1)


net = RateNet()
shapes = [(name, p.shape) for name, p in net.named_parameters()]


def unpack(theta):
    out, i = {}, 0
    for name, shape in shapes:
        n = shape.numel()
        out[name] = theta[i:i + n].view(shape)
        i += n
    return out


def potential(theta):
    log_rate = functional_call(net, unpack(theta), (evenings,))
    nll = (log_rate.exp() - counts * log_rate).sum()
    return nll + 0.5 * (theta / 1.5).pow(2).sum()


def slope(theta):
    theta = theta.detach().requires_grad_(True)
    u = potential(theta)
    if u.item() == float("inf"):
        return u.detach(), None
    return u.detach(), torch.autograd.grad(u, theta)[0]


def trajectory(theta, momentum, eps, length):
    u, g = slope(theta)
    for _ in range(length):
        momentum = momentum - 0.5 * eps * g
        theta = theta + eps * momentum
        u, g = slope(theta)
        if g is None:
            return theta, momentum, float("inf")
        momentum = momentum - 0.5 * eps * g
    return theta, momentum, float(u + 0.5 * momentum.dot(momentum))


def run(rounds=40):
    eps, taken = 0.35, 0
    theta = parameters_to_vector(net.parameters()).detach()
    for r in range(1, rounds + 1):
        momentum = torch.randn(theta.shape, generator=gen)
        u0, _ = slope(theta)
        h0 = float(u0 + 0.5 * momentum.dot(momentum))
        proposal, _, h1 = trajectory(theta, momentum, eps, 8)
        accept = float(torch.rand((), generator=gen).log()) < h0 - h1
        if accept:
            theta = proposal
            vector_to_parameters(theta, net.parameters())
            taken += 1
        eps *= 1.06 if accept else 0.72
        print(f"round {r:2d} | energy {h0:10.3f} -> {h1:12.3f} | {'accepted' if accept else 'rejected'} | eps {eps:.4f}")
    return taken


taken = run()
print("accepted", taken)
print("absolute values of the weights sum to", float(parameters_to_vector(net.parameters()).detach().abs().sum()))
