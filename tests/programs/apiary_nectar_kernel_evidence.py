# Daily nectar gain of my hives, smoothed with a Gaussian process.
# Hyperparameters by maximising the evidence (type II maximum likelihood).
import math
import torch

torch.manual_seed(3)

# --- season: 70 days, day number and noon temperature -> kg per day -------------------
days = torch.arange(70).float()
temperature = 18 + 6 * torch.sin(days / 70 * math.pi) + 1.5 * torch.randn(70)
bloom = 1.8 * torch.exp(-((days - 22) / 9) ** 2) + 1.1 * torch.exp(-((days - 50) / 6) ** 2)
gain = bloom + 0.05 * (temperature - 20) + 0.09 * torch.randn(70)

X = torch.stack([(days - days.mean()) / days.std(),
                 (temperature - temperature.mean()) / temperature.std()], 1)
y = (gain - gain.mean()) / gain.std()

log_scale = torch.tensor([-0.5, 0.3], requires_grad=True)
log_signal = torch.tensor(0.0, requires_grad=True)
log_noise = torch.tensor(0.2, requires_grad=True)
hyper = [log_scale, log_signal, log_noise]


def kernel(a, b):
    a, b = a / log_scale.exp(), b / log_scale.exp()
    sq = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
    return (2 * log_signal).exp() * torch.exp(-0.5 * sq.clamp(min=0))


def negative_evidence():
    K = kernel(X, X) + (2 * log_noise).exp() * torch.eye(len(X))
    L, _ = torch.linalg.cholesky_ex(K)
    alpha = torch.cholesky_solve(y[:, None], L)
    fit = 0.5 * (y[:, None] * alpha).sum()
    volume = L.diagonal().prod().log()
    return fit + volume + 0.5 * len(X) * math.log(2 * math.pi)


opt = torch.optim.Adam(hyper, lr=0.11)
for epoch in range(1, 37):
    opt.zero_grad()
    nle = negative_evidence()
    nle.backward()
    opt.step()
    print("epoch", epoch, "negative log evidence %.4f" % nle.item(),
          "noise %.4f" % math.exp(log_noise.item()))

with torch.no_grad():
    K = kernel(X, X) + (2 * log_noise).exp() * torch.eye(len(X))
    L, _ = torch.linalg.cholesky_ex(K)
    ahead = torch.tensor([[1.8, 0.0], [1.9, 0.0]])
    guess = kernel(ahead, X) @ torch.cholesky_solve(y[:, None], L)
print("next days", [round(g, 3) for g in guess.flatten().tolist()])
print("squares of the hyperparameters:", sum((h ** 2).sum().item() for h in hyper))
