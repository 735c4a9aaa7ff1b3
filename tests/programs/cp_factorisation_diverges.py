"""CP decomposition of a third-order tensor by plain gradient descent written out by hand."""
import torch

torch.manual_seed(17)
torch.set_num_threads(1)

RANK = 4
RATE = 0.08
STEPS = 60


def synthetic(shape=(10, 9, 8)):
    parts = [torch.randn(n, RANK) for n in shape]
    return torch.einsum("ir,jr,kr->ijk", *parts) + 0.01 * torch.randn(shape)


def reconstruct(a, b, c):
    pairs = (a.unsqueeze(1) * b.unsqueeze(0)).reshape(-1, RANK)
    return (pairs @ c.t()).reshape(len(a), len(b), len(c))


def objective(target, factors):
    residual = reconstruct(*factors) - target
    return 0.5 * (residual * residual).sum()


target = synthetic()
factors = [torch.empty(n, RANK).normal_(0, 0.3).requires_grad_() for n in target.shape]

print(f"target norm {target.norm().item():.3f}")
for step in range(1, STEPS + 1):
    loss = objective(target, factors)
    for f in factors:
        f.grad = None
    loss.backward()
    print(f"step {step} objective {loss.item():.6g}")
    with torch.no_grad():
        for f in factors:
            f -= RATE * f.grad
            # a light shrinkage keeps the three factors balanced
            f *= 0.9995

print("finite", int(all(bool(torch.isfinite(f).all()) for f in factors)))
