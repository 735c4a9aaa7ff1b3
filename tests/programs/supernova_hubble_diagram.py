#!/usr/bin/env python
# Fit Omega_m, Omega_Lambda and an absolute-magnitude offset to a mock type Ia sample.
# Curvature is handled with the usual sinh() expression.
import numpy as np
import torch

torch.set_default_dtype(torch.float64)
rng = np.random.RandomState(580)
C_KMS = 299792.458
H0 = 70.0
N_SN = 160


def mock_sample():
    """distance moduli of a slightly closed universe (0.34, 0.78)"""
    z = np.sort(rng.uniform(0.02, 1.4, N_SN))
    om, ol = 0.34, 0.78
    ok = 1 - om - ol
    mu = []
    for zi in z:
        g = np.linspace(0, zi, 400)
        e = np.sqrt(om * (1 + g) ** 3 + ok * (1 + g) ** 2 + ol)
        chi = np.trapezoid(1 / e, g)
        r = np.sin(np.sqrt(-ok) * chi) / np.sqrt(-ok)
        mu.append(5 * np.log10((1 + zi) * r * C_KMS / H0) + 25)
    sig = 0.10 + 0.05 * rng.rand(N_SN)
    mu = np.array(mu) + sig * rng.randn(N_SN)
    return torch.tensor(z), torch.tensor(mu), torch.tensor(sig)


z, mu_obs, sigma = mock_sample()
frac = torch.linspace(0, 1, 200)
grid = z[:, None] * frac[None, :]

om = torch.tensor(0.27, requires_grad=True)
ol = torch.tensor(0.64, requires_grad=True)
dM = torch.tensor(0.0, requires_grad=True)


def distance_modulus(om, ol, dM):
    ok = 1.0 - om - ol
    e2 = om * (1 + grid) ** 3 + ok * (1 + grid) ** 2 + ol
    chi = torch.trapezoid(e2.rsqrt(), grid, dim=1)
    root = torch.sqrt(ok)
    r = torch.sinh(root * chi) / root
    return 5 * torch.log10((1 + z) * r * C_KMS / H0) + 25 + dM


opt = torch.optim.SGD([{"params": [om, ol], "lr": 4e-3}, {"params": [dM], "lr": 1e-3}], momentum=0.6)

for it in range(1, 61):
    opt.zero_grad()
    chi2 = (((distance_modulus(om, ol, dM) - mu_obs) / sigma) ** 2).mean()
    line = "%3d chi2/N %.8f  Om %.5f  OL %.5f  dM %+.5f" % (it, chi2.item(), om.item(), ol.item(), dM.item())
    chi2.backward()
    opt.step()
    print(line)

print("final", (om.abs() + ol.abs() + dM.abs()).item())
