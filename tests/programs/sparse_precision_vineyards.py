"""Graphical lasso between the soil sensors of twelve vineyards.

Proximal gradient with backtracking.  The step is tried generously long every time and halved until the
point lies inside the cone and the quadratic bound holds.
"""
import math

import torch


def sample_covariance(n_rows, dim, generator):
    chain = torch.eye(dim, dtype=torch.float64)
    for i in range(dim - 1):
        chain[i, i + 1] = chain[i + 1, i] = -0.45
    chain[0, 5] = chain[5, 0] = 0.2
    chol = torch.linalg.cholesky(torch.linalg.inv(chain))
    rows = torch.randn(n_rows, dim, dtype=torch.float64, generator=generator) @ chol.T
    rows = rows - rows.mean(0)
    return rows.T @ rows / n_rows


def soft(x, threshold):
    return torch.sign(x) * torch.clamp(x.abs() - threshold, min=0.0)


class BacktrackingISTA(torch.optim.Optimizer):
    def __init__(self, params, longest=4.0, penalty=0.05, max_halvings=40):
        super().__init__(params, dict(longest=longest, penalty=penalty, max_halvings=max_halvings))
        self.halvings = 0

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            smooth = closure(True)
        group = self.param_groups[0]
        (p,) = group["params"]
        here, grad = p.clone(), p.grad.clone()
        length, self.halvings = group["longest"], 0
        off_diagonal = 1.0 - torch.eye(p.shape[0], dtype=p.dtype)
        for _ in range(group["max_halvings"]):
            p.copy_(soft(here - length * grad, length * group["penalty"] * off_diagonal))
            move = p - here
            trial = closure(False)
            bound = smooth + (grad * move).sum() + move.square().sum() / (2.0 * length)
            if trial <= bound + 1e-12:          # also False outside of the cone
                return smooth + group["penalty"] * (here * off_diagonal).abs().sum()
            length *= 0.5
            self.halvings += 1
        p.copy_(here)
        return smooth


class SparsePrecision(torch.nn.Module):
    def __init__(self, cov):
        super().__init__()
        self.register_buffer("cov", cov)
        self.precision = torch.nn.Parameter(torch.diag(1.0 / cov.diagonal()))

    def forward(self):
        factor, _ = torch.linalg.cholesky_ex(self.precision)
        logdet = 2.0 * torch.log(factor.diagonal()).sum()
        return (self.cov * self.precision).sum() - logdet


def main():
    g = torch.Generator().manual_seed(31)
    model = SparsePrecision(sample_covariance(80, 12, g))
    optimizer = BacktrackingISTA(model.parameters())

    def closure(backward):
        if backward:
            optimizer.zero_grad()
        value = model()
        if backward:
            value.backward()
            model.precision.grad.copy_((model.precision.grad + model.precision.grad.T) / 2)
        return value.detach()

    for it in range(1, 41):
        loss = optimizer.step(closure)
        with torch.no_grad():
            zeros = int((model.precision == 0).sum())
        print(f"it {it:3d}  objective {loss.item():.8f}  halvings {optimizer.halvings}  zeros {zeros}", flush=True)

    eig = torch.linalg.eigvalsh(model.precision.detach())
    assert eig.min() > 0 and math.isfinite(eig.max())
    print(f"norm of the precision {model.precision.detach().norm().item():.8f}")


if __name__ == "__main__":
    main()
