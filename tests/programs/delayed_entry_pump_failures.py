#!/usr/bin/env python
# Weibull regression of pump life. Some pumps were already running when the register
# was opened (delayed entry), the others were installed new afterwards (entry age 0).
import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(42)
torch.manual_seed(42)
N_PUMPS, N_COV, BATCH = 600, 5, 60


def register():
    x = rng.normal(size=(N_PUMPS, N_COV))
    log_scale = 0.8 + x @ np.array([0.4, -0.3, 0.2, 0.0, 0.1])
    true_shape = 0.62                       # many fail young
    entry = np.where(rng.random(N_PUMPS) < 0.4, rng.uniform(0.05, 1.5, N_PUMPS), 0.0)
    base = (entry / np.exp(log_scale)) ** true_shape
    life = np.exp(log_scale) * (base + rng.exponential(size=N_PUMPS)) ** (1 / true_shape)
    stop = entry + rng.uniform(1.0, 8.0, N_PUMPS)
    failed = life <= stop
    age = np.maximum(np.minimum(life, stop), entry + 1e-3)
    return [torch.tensor(v, dtype=torch.float32) for v in (x, entry, age, failed)]


class PumpLife(nn.Module):
    def __init__(self):
        super().__init__()
        self.covariates = nn.Sequential(nn.Linear(N_COV, 12), nn.Tanh(), nn.Linear(12, 1))
        self.log_shape = nn.Parameter(torch.tensor(0.4))

    def forward(self, x):
        return torch.exp(self.covariates(x).squeeze(-1)), torch.exp(self.log_shape)

    def negative_log_likelihood(self, x, entry, age, failed):
        scale, shape = self(x)
        log_hazard = torch.log(shape / scale) + (shape - 1) * torch.log(age / scale)
        before = (entry / scale) ** shape
        after = (age / scale) ** shape
        return -(failed * log_hazard - (after - before)).mean()


x, entry, age, failed = register()
model = PumpLife()
optimizer = torch.optim.NAdam([
    {"params": model.covariates.parameters(), "lr": 5e-3},
    {"params": [model.log_shape], "lr": 5e-2},
])

step = 0
for epoch in range(4):
    order = torch.randperm(N_PUMPS)
    for rows in order.split(BATCH):
        step += 1
        nll = model.negative_log_likelihood(x[rows], entry[rows], age[rows], failed[rows])
        shape = model.log_shape.exp().item()
        optimizer.zero_grad()
        nll.backward()
        optimizer.step()
        print(f"epoch {epoch} step {step:2d} nll {nll.item():.5f} shape {shape:.4f}")

flat = nn.utils.parameters_to_vector(model.parameters()).detach()
print(f"squared length of all parameters: {flat.dot(flat).item():.6f}")
