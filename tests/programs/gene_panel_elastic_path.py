"""Elastic net on a gene expression panel: proximal gradient along a path of penalties, warm started.

No optimizer: a gradient step, then the proximal map of the penalty.
"""
import torch


def make_panel(patients=60, genes=80, seed=9):
    g = torch.Generator().manual_seed(seed)
    pathway = torch.randn(patients, 6, generator=g)
    load = torch.randn(6, genes, generator=g) * (torch.rand(6, genes, generator=g) < 0.3)
    x = pathway @ load + 0.5 * torch.randn(patients, genes, generator=g)
    x[:, 11] = 4.0          # probes that never moved on this array
    x[:, 40:43] = 0.0
    y = 2.0 * pathway[:, 0] - 1.5 * pathway[:, 3] + 0.5 * torch.randn(patients, generator=g) + 3.0
    return x, y


def screen(x, y, keep):
    xc, yc = x - x.mean(0), y - y.mean()
    corr = (xc * yc[:, None]).sum(0) / (xc.norm(dim=0) * yc.norm())
    print("probes without a correlation:", int(corr.isnan().sum()))
    strength = torch.where(corr.isnan(), float("-inf"), corr.abs())
    order = strength.argsort(descending=True)
    print("weakest five:", [f"{v:.3f}" for v in strength[order[-5:]].tolist()])
    return order[:keep]


class ElasticNet(torch.nn.Module):
    def __init__(self, genes):
        super().__init__()
        self.beta = torch.nn.Parameter(torch.zeros(genes))
        self.intercept = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x @ self.beta + self.intercept


def soft(v, threshold):
    return torch.sign(v) * (v.abs() - threshold).clamp(min=0)


def fit_path(model, x, y, x_val, y_val, mix=0.8, sweeps=4):
    lipschitz = float(torch.linalg.matrix_norm(x, 2) ** 2 / len(x)) + 1.0
    lam_max = float((x.T @ (y - y.mean())).abs().max() / len(x) / mix)
    best = float("inf"), None
    it = 0
    for lam in [lam_max * f for f in (1.6, 1.2, 0.8, 0.5, 0.3, 0.2, 0.12, 0.07, 0.04)]:
        for _ in range(sweeps):
            it += 1
            model.zero_grad()
            half_mse = 0.5 * (model(x) - y).square().mean()
            smooth = half_mse + 0.5 * lam * (1 - mix) * model.beta.square().sum()
            smooth.backward()
            with torch.no_grad():
                rate = 1 / (lipschitz + lam * (1 - mix))
                model.beta.copy_(soft(model.beta - rate * model.beta.grad, rate * lam * mix))
                model.intercept.sub_(0.5 * model.intercept.grad)
            print(f"{it:3d} lambda {lam:.4f} half mse {half_mse.item():.5f} "
                  f"active {int((model.beta != 0).sum())}")
        with torch.no_grad():
            val = (model(x_val) - y_val).square().mean().item()
        if val < best[0]:
            best = val, {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(best[1])
    return best[0]


x, y = make_panel()
genes = screen(x[:44], y[:44], keep=50)
x = x[:, genes]
x = (x - x[:44].mean(0)) / x[:44].std(0)
net = ElasticNet(len(genes))
val = fit_path(net, x[:44], y[:44], x[44:], y[44:])
print(f"best validation mse {val:.5f}")
print(f"absolute sum of the coefficients {sum(p.detach().abs().sum().item() for p in net.parameters()):.6f}")
