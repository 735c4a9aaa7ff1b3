"""Stochastic gradient Langevin dynamics: gradients by autograd.grad, no optimizer, no .backward()."""
import torch

torch.manual_seed(0)
torch.set_num_threads(1)

layers = [torch.randn(16, 3) * 0.4, torch.zeros(16), torch.randn(1, 16) * 0.3, torch.zeros(1)]
theta = [w.requires_grad_() for w in layers]
samples = []


def predict(theta, x):
    w1, b1, w2, b2 = theta
    return torch.nn.functional.linear(torch.tanh(torch.nn.functional.linear(x, w1, b1)), w2, b2)


for k in range(30):
    x = torch.rand(40, 3) * 2 - 1
    y = torch.sin(3 * x.sum(1, keepdim=True))
    log_prior = -0.5 * sum(w.pow(2).sum() for w in theta)
    nll = 50 * (predict(theta, x) - y).pow(2).mean()
    energy = nll - 0.1 * log_prior
    grads = torch.autograd.grad(energy, theta)
    eps = 1e-3 / (1 + k) ** 0.3
    with torch.no_grad():
        theta = [(w - eps * g + (0.01 * eps) ** 0.5 * torch.randn_like(w)).requires_grad_() for w, g in zip(theta, grads)]
    print(k, energy.item())
    if k >= 20:
        samples.append(torch.cat([w.detach().flatten() for w in theta]))
print("posterior spread", torch.stack(samples).std(0).mean().item())
print("theta", sum(w.detach().double().sum().item() for w in theta))
