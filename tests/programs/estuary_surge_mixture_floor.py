# Mixture density network for the height of the tide at a river mouth: three Gaussians, tensors only.
import math
import torch
import torch.nn.functional as F

gen = torch.Generator().manual_seed(31)
K, HIDDEN = 3, 24


def init(*size):
    return (torch.randn(*size, generator=gen) / math.sqrt(size[0])).requires_grad_()


W = {"in": init(5, HIDDEN), "b": torch.zeros(HIDDEN, requires_grad=True), "pi": init(HIDDEN, K),
     "mu": init(HIDDEN, K), "sig": init(HIDDEN, K), "b_mu": torch.tensor([-1.0, 0.0, 1.0], requires_grad=True),
     "b_sig": torch.full((K,), -0.6, requires_grad=True)}


def tide(hours):
    m2 = 1.2 * torch.cos(2 * math.pi * hours / 12.42)
    s2 = 0.4 * torch.cos(2 * math.pi * hours / 12.0 + 0.7)
    wind = torch.randn(hours.shape, generator=gen)
    surge = torch.where(wind > 1, 0.5 * wind, 0.05 * wind)
    x = torch.stack([torch.cos(2 * math.pi * hours / 12.42), torch.sin(2 * math.pi * hours / 12.42),
                     torch.cos(2 * math.pi * hours / 12.0), torch.sin(2 * math.pi * hours / 12.0), wind], 1)
    return x, m2 + s2 + surge


def neg_log_lik(x, y, extra):
    h = torch.tanh(x @ W["in"] + W["b"])
    width = F.softplus(h @ W["sig"] + W["b_sig"]) + extra
    centre = h @ W["mu"] + W["b_mu"]
    share = F.log_softmax(h @ W["pi"], dim=1)
    z = (y[:, None] - centre) / width
    spread = torch.log(width)
    return -torch.logsumexp(share - 0.5 * z * z - spread - 0.9189, dim=1).mean()


lr = 0.05
for it in range(36):
    # the widths are held up by an allowance that shrinks every other round
    allowance = 0.35 - 0.05 * (it // 2)
    x, y = tide(2000 * torch.rand(128, generator=gen))
    nll = neg_log_lik(x, y, allowance)
    grads = torch.autograd.grad(nll, list(W.values()))
    size = torch.sqrt(sum((g * g).sum() for g in grads))
    shrink = min(1.0, 2.0 / (size.item() + 1e-6))
    with torch.no_grad():
        for w, g in zip(W.values(), grads):
            w -= lr * shrink * g
    print("round", it + 1, "allowance", f"{allowance:.2f}", "nll", f"{nll.item():.4f}")
print("squared weights", f"{sum((w * w).sum() for w in W.values()).item():.4f}")
