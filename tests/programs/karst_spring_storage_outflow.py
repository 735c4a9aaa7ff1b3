# Calibration of a one-reservoir model of a karst spring (daily steps).
#   dS/dt = P - c * PET - Q,   Q = k * S**a
# c, k and a are fitted to gauged discharge by gradient descent through the recursion.
import math

import numpy as np
import torch

DAYS = 150
rng = np.random.default_rng(41)


def make_record():
    day = np.arange(DAYS)
    wet = rng.random(DAYS) < np.where(day < 70, 0.45, 0.12)
    rain = np.where(wet, rng.gamma(1.4, 6.0, DAYS), 0.0)
    pet = 1.6 + 2.2 * np.sin(math.pi * day / DAYS) ** 2
    store, flow = 60.0, []
    for p, e in zip(rain, pet):
        q = 0.0055 * store ** 1.45
        actual = 0.95 * e * store / (store + 25.0)      # the soil holds on to its last water
        store = max(store + p - actual - q, 0.5)
        flow.append(q)
    flow = np.array(flow) * rng.normal(1.0, 0.03, DAYS)
    return (torch.tensor(rain, dtype=torch.float32), torch.tensor(pet, dtype=torch.float32),
            torch.tensor(flow, dtype=torch.float32))


def simulate(rain, pet, theta):
    k = torch.exp(theta["log_k"])
    c = theta["crop"]
    a = theta["shape"]
    store = torch.tensor(60.0)
    out = []
    for day in range(DAYS):
        q = k * store ** a
        out.append(q)
        store = store + rain[day] - c * pet[day] - q
    return torch.stack(out)


def calibrate():
    rain, pet, flow = make_record()
    theta = {
        "log_k": torch.tensor(math.log(0.012), requires_grad=True),
        "crop": torch.tensor(0.05, requires_grad=True),
        "shape": torch.tensor(1.30, requires_grad=True),
    }
    rate = {"log_k": 4e-3, "crop": 2e-3, "shape": 1e-4}
    speed = {name: torch.zeros(()) for name in theta}

    print("gauged mean", round(flow.mean().item(), 4), "mm/day")
    for it in range(1, 36):
        sim = simulate(rain, pet, theta)
        misfit = ((sim - flow) ** 2).mean() / flow.var()
        grads = torch.autograd.grad(misfit, list(theta.values()))
        with torch.no_grad():
            for (name, par), g in zip(theta.items(), grads):
                speed[name] = 0.8 * speed[name] + g
                par -= rate[name] * speed[name]
        print(f"it {it:2d}  1-NSE {misfit.item():.5f}  c {theta['crop'].item():.4f}  a {theta['shape'].item():.4f}")
    return theta


theta = calibrate()
print("sum of squared parameters", sum(float(p.detach() ** 2) for p in theta.values()))
