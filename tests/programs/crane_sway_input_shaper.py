import math
import torch
from torch import nn

# Quay cranes: identify frequency and damping of the sway of five spreaders from step responses,
# and learn the second impulse of a two-pulse shaper that quietens them.

CRANES, SAMPLES = 5, 60
TIME = torch.arange(SAMPLES) * 0.2


def recorded_sway(seed=6):
    gen = torch.Generator().manual_seed(seed)
    omega = torch.tensor([1.1, 0.9, 1.3, 1.0, 1.2])
    zeta = torch.tensor([0.15, 0.3, 0.22, 2.1, 0.4])   # number four carries a hydraulic sway damper
    out = []
    for w, z in zip(omega, zeta):
        x, v, row = 1.0, 0.0, []
        for k in range(SAMPLES * 20):
            if k % 20 == 0:
                row.append(x)
            a = -2 * z.item() * w.item() * v - w.item() ** 2 * x
            v += 0.01 * a
            x += 0.01 * v
        out.append(row)
    sway = torch.tensor(out)
    return sway + 0.01 * torch.randn(sway.shape, generator=gen)


class Spreader(nn.Module):
    def __init__(self):
        super().__init__()
        self.omega = nn.Parameter(torch.ones(CRANES))
        self.zeta = nn.Parameter(torch.full((CRANES,), 0.55))

    def damped(self):
        return self.omega * torch.sqrt(1 - self.zeta ** 2)

    def forward(self, t):
        wd = self.damped()[:, None]
        decay = self.zeta[:, None] * self.omega[:, None]
        return torch.exp(-decay * t) * (torch.cos(wd * t) + decay / wd * torch.sin(wd * t))


class ShapedCrane(nn.Module):
    def __init__(self):
        super().__init__()
        self.spreader = Spreader()
        self.second_pulse = nn.Parameter(torch.full((CRANES,), 0.4))
        self.delay = nn.Parameter(torch.full((CRANES,), 2.5))

    def forward(self):
        free = self.spreader(TIME)
        late = self.spreader((TIME[None] - self.delay[:, None]).clamp(min=0))
        amount = torch.sigmoid(self.second_pulse)[:, None]
        started = torch.sigmoid(8 * (TIME[None] - self.delay[:, None]))
        shaped = (1 - amount) * free + amount * late * started
        return free, shaped


def train():
    torch.manual_seed(0)
    sway = recorded_sway()
    crane = ShapedCrane()
    opt = torch.optim.Adam(crane.parameters(), lr=0.04, betas=(0.8, 0.99))
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=80)
    for epoch in range(40):
        free, shaped = crane()
        fit = (free - sway).pow(2).mean()
        rest = shaped[:, SAMPLES // 2:].pow(2).mean()
        loss = fit + 0.05 * rest
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(crane.parameters(), 1.0)
        opt.step()
        plan.step()
        print(f"[{epoch + 1:02d}] fit={fit.item():.6f} residual={rest.item():.6f} lr={plan.get_last_lr()[0]:.4f}")
    return crane


crane = train()
print("identified values, sum of squares:", f"{math.fsum(p.detach().pow(2).sum().item() for p in crane.parameters()):.6f}")
