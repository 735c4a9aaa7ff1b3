# visual meteor counts, ten-minute bins: every bin is either sporadic background or belongs to the shower
import torch
from torch.autograd import grad

torch.manual_seed(77)
torch.set_default_dtype(torch.float64)

N_NIGHTS, BINS = 32, 24


def night(number):
    """limiting magnitude, radiant altitude, observed counts"""
    lm = 5.2 + 1.2 * torch.rand(BINS)
    alt = torch.rand(BINS)
    solar = (number - 17) / 1.5
    zhr = 26.0 * torch.exp(torch.tensor(-solar * solar))
    shower = torch.rand(BINS) < 0.5
    mean = torch.exp(0.5 * (lm - 6.0)) * (2.0 + shower * zhr * alt)
    return lm, alt, torch.poisson(mean).long()


def log_poisson(k, log_rate):
    factorial = torch.stack([torch.arange(1, int(n) + 1).prod() for n in k])
    return k * log_rate - log_rate.exp() - factorial.log()


def log_mixture(theta, lm, alt, k):
    base, activity, extinction, mix = theta
    sporadic = base + extinction * (lm - 6.0)
    shower = sporadic + activity * alt
    a = torch.nn.functional.logsigmoid(-mix) + log_poisson(k, sporadic)
    b = torch.nn.functional.logsigmoid(mix) + log_poisson(k, shower)
    return torch.logaddexp(a, b)


theta = [torch.tensor(v, requires_grad=True) for v in (0.3, 0.5, 0.1, 0.0)]
rate = 0.03
for number in range(1, N_NIGHTS + 1):
    lm, alt, k = night(number)
    nll = -log_mixture(theta, lm, alt, k).mean()
    pieces = grad(nll, theta)
    with torch.no_grad():
        for p, g in zip(theta, pieces):
            p -= rate * g
    print("night %2d: %3d meteors, nll per bin %.6f" % (number, int(k.sum()), nll.item()))

print("sum of |theta| %.8f" % sum(p.abs().item() for p in theta))
