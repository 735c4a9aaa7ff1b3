"""Fit the heat balance of a fermenting demijohn with L-BFGS.

    C dT/dt = q(t) - k (T - T_room),   q(t) = Q * exp(-(ln(t/tm))^2 / (2 s^2))

Forty-odd outer iterations with a strong-Wolfe line search; the closure
integrates the ODE with Heun's rule and differentiates straight through it.
Residuals are in kelvin and the synthetic log is noise free, so the loss
runs down to rounding.
"""
import math

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

HOURS = torch.linspace(0.5, 96.0, 120)
ROOM = 17.0 + 1.5 * torch.sin(2 * math.pi * HOURS / 24)
TRUE = dict(Q=0.55, tm=22.0, s=0.6, k=0.045)


def positive(raw):
    return torch.exp(raw)


def heat(t, Q, tm, s):
    return Q * torch.exp(-(torch.log(t / tm) ** 2) / (2 * s ** 2))


def simulate(Q, tm, s, k):
    T = ROOM[0]
    track = [T]
    for i in range(len(HOURS) - 1):
        h = HOURS[i + 1] - HOURS[i]
        f0 = heat(HOURS[i], Q, tm, s) - k * (T - ROOM[i])
        mid = T + h * f0
        f1 = heat(HOURS[i + 1], Q, tm, s) - k * (mid - ROOM[i + 1])
        T = T + 0.5 * h * (f0 + f1)
        track.append(T)
    return torch.stack(track)


with torch.no_grad():
    observed = simulate(*(torch.tensor(v) for v in TRUE.values()))

raw = {name: torch.nn.Parameter(torch.tensor(math.log(guess)))
       for name, guess in dict(Q=0.3, tm=30.0, s=0.9, k=0.08).items()}
fit = torch.optim.LBFGS(raw.values(), lr=1.0, max_iter=3, history_size=8,
                        tolerance_grad=0.0, tolerance_change=0.0, line_search_fn="strong_wolfe")
calls = 0


def closure():
    global calls
    calls += 1
    fit.zero_grad()
    T = simulate(*(positive(r) for r in raw.values()))
    loss = (T - observed).square().mean()
    loss.backward()
    return loss


def relative_error():
    """Only for the log: at the first reading the must is at room temperature, so that is 0/0."""
    with torch.no_grad():
        T = simulate(*(positive(r) for r in raw.values()))
        rel = (T - observed).abs() / (observed - ROOM[0]).abs()
    return rel.mean().item(), rel[1:].max().item()


for it in range(1, 15):
    loss = fit.step(closure)
    mean, worst = relative_error()
    values = " ".join(f"{n}={positive(r).item():.6f}" for n, r in raw.items())
    print(f"{it:2d} loss {loss.item():.6e} rel.mean {mean:.3e} rel.max {worst:.3e} {values}")

print("closure calls", calls)
for name, r in raw.items():
    print(f"{name:3s} {positive(r).item():.9f}  (true {TRUE[name]})")
print("raw sum", f"{sum(r.item() for r in raw.values()):.9f}")
