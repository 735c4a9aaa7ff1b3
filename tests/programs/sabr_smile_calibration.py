"""Calibrate one SABR (beta = 1) surface to listed option vols with Adam.

One pass over the expiries is one epoch; all expiries share (alpha, rho, nu)
up to a small per-expiry level.
"""
import math

import torch

torch.set_default_dtype(torch.float64)

STRIKES = torch.arange(80.0, 125.0, 5.0)
# (years to expiry, forward)
CURVE = [(0.08, 100.21), (0.17, 100.43), (0.25, 100.66), (0.5, 101.32),
         (1.35, 105.0), (2.0, 106.83)]


def hagan_vol(forward, strike, expiry, alpha, rho, nu):
    log_fk = torch.log(forward / strike)
    z = nu / alpha * log_fk
    root = torch.sqrt(1.0 - 2.0 * rho * z + z * z)
    x = torch.log((root + z - rho) / (1.0 - rho))
    correction = 1.0 + expiry * (rho * nu * alpha / 4 + (2 - 3 * rho ** 2) * nu ** 2 / 24)
    return alpha * (z / x) * correction


def market_quotes():
    gen = torch.Generator().manual_seed(2024)
    quotes = []
    for expiry, forward in CURVE:
        k = torch.log(STRIKES / forward)
        vol = 0.19 - 0.10 * k / math.sqrt(expiry + 0.5) + 0.35 * k ** 2
        quotes.append(vol + 0.001 * torch.randn(len(STRIKES), generator=gen))
    return quotes


raw = {
    "alpha": torch.tensor(-1.2, requires_grad=True),
    "rho": torch.tensor(-0.1, requires_grad=True),
    "nu": torch.tensor(-0.5, requires_grad=True),
    "level": torch.zeros(len(CURVE), requires_grad=True),
}
optimizer = torch.optim.Adam(
    [{"params": [raw["alpha"], raw["rho"], raw["nu"]], "lr": 0.03},
     {"params": [raw["level"]], "lr": 0.005}])
quotes = market_quotes()

n = 0
for epoch in range(4):
    for e, (expiry, forward) in enumerate(CURVE):
        alpha = torch.nn.functional.softplus(raw["alpha"]) * torch.exp(raw["level"][e])
        rho = torch.tanh(raw["rho"])
        nu = torch.nn.functional.softplus(raw["nu"])
        model = hagan_vol(torch.tensor(forward), STRIKES, expiry, alpha, rho, nu)
        err = 1e4 * (model - quotes[e]).pow(2).mean()
        optimizer.zero_grad()
        err.backward()
        optimizer.step()
        n += 1
        print(f"epoch {epoch} T={expiry:.2f} step {n} mse(bp^2/1e4) {err.item():.6f}")

print({k: v.detach().mean().item() for k, v in raw.items()})
print(sum(float((v.detach() ** 2).sum()) for v in raw.values()))
