# Copper grades down boreholes: exact GP on learned features, one hole per step.
import math
import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(17)
torch.manual_seed(17)


def drill(hole):
    """Assays of a hole: easting, northing (km), depth (km), iron, sulphur -> log copper."""
    n = 22
    east, north = rng.uniform(-1.5, 1.5, 2)
    depth = np.sort(rng.uniform(0.0, 0.8, n))
    iron = rng.normal(0.0, 1.0, n) + np.sin(6 * depth)
    sulphur = 0.5 * iron + rng.normal(0.0, 0.6, n)
    copper = 0.7 * np.sin(5 * depth + east) + 0.4 * iron - 0.2 * north + rng.normal(0.0, 0.15, n)
    table = np.column_stack([np.full(n, east), np.full(n, north), depth, iron, sulphur])
    if hole == 18:                       # re-assayed core, entered by the contractor
        table[9, :3] *= 1000.0
        table[9, 3:] *= 10000.0
    return table.astype(np.float32), copper.astype(np.float32)


class ArcSineKernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_amp = nn.Parameter(torch.zeros(()))
        self.log_weight = nn.Parameter(torch.zeros(()))

    def forward(self, z):
        gram = 2.0 * self.log_weight.exp() * (z @ z.T)
        own = 1.0 + gram.diagonal()
        cosine = gram / torch.sqrt(own[:, None] * own[None, :])
        return self.log_amp.exp() * torch.asin(cosine) * (2.0 / math.pi)


class DeepKernelGP(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(5, 24), nn.Softplus(), nn.Linear(24, 4))
        self.kernel = ArcSineKernel()
        self.mean = nn.Parameter(torch.zeros(()))
        self.log_noise = nn.Parameter(torch.tensor(-1.5))

    def neg_log_marginal(self, x, y):
        k = self.kernel(self.features(x)) + self.log_noise.exp() * torch.eye(len(x))
        chol = torch.linalg.cholesky_ex(k).L
        r = (y - self.mean).unsqueeze(-1)
        white = torch.linalg.solve_triangular(chol, r, upper=False)
        return (0.5 * white.pow(2).sum() + chol.diagonal().log().sum()) / len(x) + 0.5 * math.log(2 * math.pi)


gp = DeepKernelGP()
opt = torch.optim.Adam([
    {"params": gp.features.parameters(), "lr": 3e-3},
    {"params": [gp.mean, gp.log_noise, *gp.kernel.parameters()], "lr": 2e-2},
])

for hole in range(1, 33):
    x, y = map(torch.from_numpy, drill(hole))

    def closure():
        opt.zero_grad()
        value = gp.neg_log_marginal(x, y)
        value.backward()
        return value

    nlml = opt.step(closure)
    print("hole %2d   nlml per assay %.4f" % (hole, nlml.item()))

print("total magnitude of parameters: %.5f" % sum(float(p.detach().abs().sum()) for p in gp.parameters()))
