"""Neural ODE for swinging chandeliers (church survey), Heun-Euler 2(1) with step control.

State: angle, angular velocity.  The vector field is odd by construction (no biases, tanh): a mirror image
of a swing is a swing.  One chandelier per optimisation step, as the tracks have different lengths.
"""
import torch
from torch import nn

torch.manual_seed(1583)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float32)

RTOL = 2e-2


class Field(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.inner = nn.Linear(2, width, bias=False)
        self.outer = nn.Linear(width, 1, bias=False)
        self.damping = nn.Parameter(torch.tensor(0.02))

    def forward(self, y):
        acc = self.outer(torch.tanh(self.inner(y))) - self.damping * y[..., 1:]
        return torch.cat([y[..., 1:], acc], -1)


def advance(field, y, span, h0=0.1):
    """Integrate over `span`; returns the state and how many field calls it took."""
    t, h, calls = 0.0, h0, 0
    for _ in range(40):
        if span - t < 1e-9:
            break
        h = min(h, span - t)
        k1 = field(y)
        euler = y + h * k1
        k2 = field(euler)
        heun = y + 0.5 * h * (k1 + k2)
        calls += 2
        with torch.no_grad():
            scaled = (heun - euler) / (RTOL * torch.maximum(y.abs().max(), heun.abs().max()))
        # half a power for a pair of order 1 and 2
        factor = (0.9 * scaled.abs().max().pow(-0.5)).clamp(0.3, 3.0)
        if scaled.abs().max().item() > 1.0 and h > 1e-3:
            h = h * factor.item()
            continue
        y, t = heun, t + h
        h = h * factor.item()
    return y, calls


def track(amplitude, omega, n, dt=0.25):
    t = torch.arange(n) * dt
    angle = amplitude * torch.cos(omega * t) * torch.exp(-0.01 * t)
    speed = -amplitude * omega * torch.sin(omega * t) * torch.exp(-0.01 * t)
    return torch.stack([angle, speed], 1), dt


SURVEY = []
g = torch.Generator().manual_seed(7)
for k in range(32):
    amp = 0.05 + 0.5 * torch.rand((), generator=g).item()
    if k == 22:
        amp = 0.0          # San Donato: nobody had touched it that day
    SURVEY.append(track(amp, 1.2 + 0.3 * torch.rand((), generator=g).item(), int(torch.randint(5, 9, (), generator=g))))

field = Field()
opt = torch.optim.Adam(field.parameters(), lr=8e-3)
for step, (truth, dt) in enumerate(SURVEY, 1):
    y, loss, calls = truth[0], 0.0, 0
    for target in truth[1:]:
        y, c = advance(field, y, dt)
        loss = loss + (y - target).square().sum()
        calls += c
    loss = loss / (len(truth) - 1)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"chandelier {step:2d}: loss {loss.item():.7f}  field calls {calls}")

print("sum of weights", f"{sum(p.double().sum().item() for p in field.parameters()):.6f}")
