# A neon lamp that flashes by itself (a relaxation oscillator): learn its right-hand side
# with an integrator of my own that looks for its step size by trial.
import torch

torch.manual_seed(8)
gen = torch.Generator().manual_seed(8)


class Lamp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.leak = torch.nn.Parameter(torch.tensor([0.3, 0.3]))
        self.inner = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

    def forward(self, s):
        return self.inner(s) - self.leak.exp() * s ** 3


def true_rhs(s):
    v, w = s.unbind(-1)
    return torch.stack([1.8 * v - 0.9 * v ** 3 - w, 0.8 * v - 0.3 * w], -1)


def rk4(f, s, h):
    k1 = f(s)
    k2 = f(s + 0.5 * h * k1)
    k3 = f(s + 0.5 * h * k2)
    k4 = f(s + h * k3)
    return s + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


@torch.no_grad()
def choose_steps(f, s, span, tol):
    """Tries a bold step and halves it until one step and two half steps agree."""
    left, plan, rejected = span, [], 0
    while left > 1e-6:
        h = 4 * plan[-1] if plan else 6.0
        while not (rk4(f, s, h) - rk4(f, rk4(f, s, h / 2), h / 2)).abs().max() <= tol:
            h, rejected = h / 2, rejected + 1
        h = min(h, left)
        plan.append(h)
        s, left = rk4(f, s, h), left - h
    return plan, rejected


def integrate(f, s, plan):
    for h in plan:
        s = rk4(f, s, h)
    return s


lamp = Lamp()
opt = torch.optim.Adam([{"params": [lamp.leak], "lr": 0.02}, {"params": lamp.inner.parameters(), "lr": 0.01}])
for epoch in range(1, 33):
    start = 4.0 * torch.rand(24, 2, generator=gen) - 2.0
    span = 0.25 * (1 + epoch // 8)
    with torch.no_grad():
        goal = start
        for _ in range(60):
            goal = rk4(true_rhs, goal, span / 60)
    plan, rejected = choose_steps(lamp, start, span, 1e-2)
    end = integrate(lamp, start, plan)
    loss = (end - goal).pow(2).mean().log()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{epoch:02d} log error {loss.item():+.4f}  steps taken {len(plan)}  trials thrown away {rejected}")
print("sum of squares over the lamp's weights", f"{sum((p * p).sum() for p in lamp.parameters()).item():.5f}")
