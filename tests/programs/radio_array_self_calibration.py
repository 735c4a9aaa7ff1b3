"""Self-calibration of a small radio interferometer: complex antenna gains and a point source model by gradient descent."""
import itertools

import numpy as np
import torch

ANTENNAS = 9
TIMES = 24
ROUNDS = 50


def measurement_set(seed=2024):
    rng = np.random.default_rng(seed)
    pairs = np.array(list(itertools.combinations(range(ANTENNAS), 2)))
    place = rng.normal(size=(ANTENNAS, 2)) * 3
    uv = place[pairs[:, 0]] - place[pairs[:, 1]]
    sky = np.array([[0.0, 0.0, 2.0], [0.12, -0.07, 0.9]])
    angle = np.linspace(0, np.pi / 3, TIMES)
    rows = []
    gains = (1 + 0.3 * rng.normal(size=ANTENNAS)) * np.exp(1j * rng.normal(size=ANTENNAS) * 0.4)
    for a in angle:
        turn = np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
        baseline = uv @ turn.T
        vis = sum(f * np.exp(-2j * np.pi * (baseline @ [l, m])) for l, m, f in sky)
        vis = vis * gains[pairs[:, 0]] * gains[pairs[:, 1]].conj()
        noise = 0.05 * (rng.normal(size=len(pairs)) + 1j * rng.normal(size=len(pairs)))
        weight = np.full(len(pairs), 1 / 0.05 ** 2)
        weight[rng.random(len(pairs)) < 0.07] = 0.0          # flagged: interference
        rows.append((baseline, vis + noise, weight))
    return pairs, [np.stack(column) for column in zip(*rows)]


pairs, (baseline, vis, weight) = measurement_set()
p, q = (torch.from_numpy(pairs[:, k]) for k in (0, 1))
baseline = torch.from_numpy(baseline).float()
vis = torch.from_numpy(vis).to(torch.complex64)
sigma = 1.0 / torch.sqrt(torch.from_numpy(weight).float())   # a weight of 0 is a visibility of unlimited error
print("visibilities", vis.numel(), "flagged", int((weight == 0).sum()))

torch.manual_seed(0)
gain = torch.nn.Parameter(torch.ones(ANTENNAS, dtype=torch.complex64))
flux = torch.nn.Parameter(torch.tensor([1.5, 0.5]))
place = torch.tensor([[0.0, 0.0], [0.12, -0.07]])
solver = torch.optim.Adam([{"params": [gain], "lr": 0.03}, {"params": [flux], "lr": 0.02}], amsgrad=True)

for r in range(ROUNDS):
    t = torch.randperm(TIMES)[:8]
    fringe = torch.exp(torch.complex(torch.zeros(()), -2 * torch.pi * (baseline[t] @ place.T)))
    model = (fringe * flux).sum(-1) * gain[p] * gain[q].conj()
    residual = (vis[t] - model) / sigma[t]
    chi2 = torch.view_as_real(residual).square().sum() / (2 * torch.isfinite(sigma[t]).sum())
    solver.zero_grad()
    chi2.backward()
    solver.step()
    print(f"round {r + 1:2d} reduced chi2 {chi2.item():.5f}")

print(f"final {gain.abs().sum().item() + flux.abs().sum().item():.6f}")
