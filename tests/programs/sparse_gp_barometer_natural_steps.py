# Station barometer, three days: stochastic variational GP (Hensman et al. 2013).
# q(u) = N(m, S) moves along the natural gradient, in closed form; Adam has the kernel, the noise and the inducing times.
import math
import torch

torch.set_default_dtype(torch.float64)
gen = torch.Generator().manual_seed(1013)
hours = torch.linspace(0, 72, 180)
truth = 0.9 * torch.sin(hours / 9) + 0.05 * torch.cos(hours * math.pi / 6) - 0.6 * torch.sigmoid((hours - 50) / 2)
hpa = truth + 0.03 * torch.randn(180, generator=gen)


class Hyper(torch.nn.Module):
    def __init__(self, inducing):
        super().__init__()
        self.length = torch.nn.Parameter(torch.tensor(math.log(6.0)))
        self.height = torch.nn.Parameter(torch.tensor(0.0))
        self.noise = torch.nn.Parameter(torch.tensor(math.log(0.3)))
        self.at = torch.nn.Parameter(torch.linspace(1, 71, inducing))

    def k(self, a, b):
        return (2 * self.height).exp() * torch.exp(-0.5 * ((a[:, None] - b[None, :]) / self.length.exp()).square())


def negative_elbo(hyper, m, S, t, y):
    """per reading, so that it falls below zero once the density at the data exceeds one"""
    Kzz = hyper.k(hyper.at, hyper.at) + 1e-6 * torch.eye(len(m))
    chol = torch.linalg.cholesky(Kzz)
    A = torch.cholesky_solve(hyper.k(hyper.at, t), chol)
    mean = A.T @ m
    var = (2 * hyper.height).exp() - (A * (Kzz @ A)).sum(0) + (A * (S @ A)).sum(0)
    s2 = (2 * hyper.noise).exp()
    fit = 0.5 * (math.log(2 * math.pi) + 2 * hyper.noise + ((y - mean).square() + var) / s2).mean()
    Ki_S = torch.cholesky_solve(S, chol)
    kl = 0.5 * (Ki_S.diagonal().sum() + m @ torch.cholesky_solve(m[:, None], chol)[:, 0] - len(m)
                + 2 * chol.diagonal().log().sum() - torch.logdet(S))
    return fit + kl / len(hpa), A.detach(), Kzz.detach(), s2.detach()


hyper = Hyper(14)
precision, shift = torch.eye(14), torch.zeros(14)      # natural parameters of q(u)
adam = torch.optim.Adam([{"params": [hyper.at], "lr": 0.3},
                         {"params": [hyper.length, hyper.height, hyper.noise], "lr": 0.08}])
for it in range(1, 39):
    pick = torch.randperm(180, generator=gen)[:60]
    S = torch.linalg.inv(precision)
    S = 0.5 * (S + S.T)
    loss, A, Kzz, s2 = negative_elbo(hyper, S @ shift, S, hours[pick], hpa[pick])
    adam.zero_grad()
    loss.backward()
    adam.step()
    rate = min(0.9, 0.1 + it / 40)
    target = torch.linalg.inv(Kzz) + (180 / 60) * A @ A.T / s2
    precision = (1 - rate) * precision + rate * target
    shift = (1 - rate) * shift + rate * (180 / 60) * A @ hpa[pick] / s2
    print("%2d  -elbo per reading %+.5f  noise %.4f" % (it, loss.item(), hyper.noise.exp().item()))
print("hyperparameters squared %.6f" % sum(p.detach().square().sum().item() for p in hyper.parameters()))
