# Gaussian process on hourly ozone, hyperparameters by type-II maximum likelihood.
# Single precision and a smooth kernel: the factorisation fails now and then, and is then tried again with jitter.
import warnings
import numpy as np
import torch

np.seterr(all="raise")
warnings.simplefilter("error")

torch.manual_seed(5)
N = 120
t = torch.sort(torch.rand(N) * 72).values
t[40:44] = t[40]                     # the logger stood still
ozone = 60 + 25 * torch.sin((t - 9) * 2 * np.pi / 24) + 6 * torch.sin(t / 5)
ozone = ozone + 0.05 * torch.randn(N)
y = (ozone - ozone.mean()) / ozone.std()

LADDER = (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
theta = {
    "log_scale": torch.tensor(0.0, requires_grad=True),
    "log_length": torch.tensor(0.5, requires_grad=True),
    "log_noise": torch.tensor(-7.0, requires_grad=True),
}


def covariance(a, b):
    d = a[:, None] - b[None, :]
    return torch.exp(theta["log_scale"]) * torch.exp(-0.5 * (d / torch.exp(theta["log_length"])) ** 2)


def factor(K):
    for jitter in LADDER:
        try:
            return torch.linalg.cholesky(K + jitter * torch.eye(len(K))), jitter
        except torch.linalg.LinAlgError:
            continue
    raise RuntimeError("not positive definite, even with jitter")


def negative_log_likelihood():
    K = covariance(t, t) + torch.exp(theta["log_noise"]) * torch.eye(N)
    L, jitter = factor(K)
    alpha = torch.cholesky_solve(y[:, None], L)[:, 0]
    return 0.5 * (y @ alpha) / N + torch.log(L.diagonal()).sum() / N, jitter


def normalise():
    """Rprop looks at signs alone; the size is taken out so that the log is readable."""
    for p in theta.values():
        p.grad /= 1 + p.grad.abs()


optimizer = torch.optim.Rprop(theta.values(), lr=0.05, step_sizes=(1e-5, 0.4))
jitters = []
for it in range(45):
    optimizer.zero_grad()
    nll, jitter = negative_log_likelihood()
    nll.backward()
    normalise()
    optimizer.step()
    jitters.append(jitter)
    print("%2d nll %.4f jitter %g" % (it, nll.item(), jitter))

with torch.no_grad():
    grid = torch.linspace(0, 72, 7)
    L, _ = factor(covariance(t, t) + torch.exp(theta["log_noise"]) * torch.eye(N))
    mean = covariance(grid, t) @ torch.cholesky_solve(y[:, None], L)[:, 0]
print("posterior", " ".join("%.1f" % v for v in mean * ozone.std() + ozone.mean()))
print("jitter needed in", sum(j > 0 for j in jitters), "of", len(jitters))
print("final %.4f" % sum(p.detach().abs().item() for p in theta.values()))
