"""Tidal constituents and datum offsets of a network of gauges, fitted to hourly sea level."""
import math
import torch


class SoftLion(torch.optim.Optimizer):
    """Lion whose sign is a tanh at first and hardens linearly over `harden` steps."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), temperature=0.02, harden=20, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, temperature=temperature, harden=harden, weight_decay=weight_decay))
        self.count = 0

    @torch.no_grad()
    def step(self):
        self.count += 1
        for group in self.param_groups:
            b1, b2 = group["betas"]
            tau = group["temperature"] * max(0.0, 1.0 - self.count / group["harden"])
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("momentum", torch.zeros_like(p))
                c = b1 * m + (1 - b1) * p.grad
                direction = torch.tanh(c / tau)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(direction, alpha=-group["lr"])
                m.lerp_(p.grad, 1 - b2)


PERIODS_H = [12.4206, 12.0, 12.6583, 23.9345, 25.8193]     # M2 S2 N2 K1 O1
GAUGES = ["northwall", "mole", "lightship", "inner_basin", "sluice", "ferry_pier"]
SILENT = {"sluice"}                                          # in repair during this campaign


class HarmonicModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        k = len(PERIODS_H)
        self.shared = torch.nn.Parameter(torch.zeros(k, 2))
        self.local = torch.nn.Embedding(len(GAUGES), 2 * k)
        self.datum = torch.nn.Embedding(len(GAUGES), 1)
        torch.nn.init.normal_(self.local.weight, std=0.01)
        torch.nn.init.zeros_(self.datum.weight)
        self.register_buffer("omega", 2 * math.pi / torch.tensor(PERIODS_H))

    def forward(self, gauge, hour):
        phase = hour[:, None] * self.omega
        basis = torch.stack([phase.cos(), phase.sin()], -1)
        amp = self.shared + self.local(gauge).view(-1, len(PERIODS_H), 2)
        return (basis * amp).sum((1, 2)) + self.datum(gauge)[:, 0]


def readings(g, n):
    working = torch.tensor([i for i, name in enumerate(GAUGES) if name not in SILENT])
    gauge = working[torch.randint(0, len(working), (n,), generator=g)]
    hour = torch.rand(n, generator=g) * 24 * 14
    level = sum(a * torch.cos(2 * math.pi * hour / p - 0.3 * i - 0.2 * gauge)
                for i, (a, p) in enumerate(zip([1.3, 0.45, 0.25, 0.15, 0.1], PERIODS_H)))
    return gauge, hour, level + 0.1 * gauge + 0.03 * torch.randn(n, generator=g)


def run(iterations=34):
    torch.manual_seed(2)
    g = torch.Generator().manual_seed(40)
    model = HarmonicModel()
    opt = SoftLion(model.parameters(), lr=3e-2, weight_decay=1e-2)
    for i in range(1, iterations + 1):
        gauge, hour, level = readings(g, 160)
        opt.zero_grad()
        misfit = (model(gauge, hour) - level).pow(2).mean()
        misfit.backward()
        opt.step()
        print(f"{i:3d}  rms {misfit.sqrt().item():.4f} m   mean |datum| {model.datum.weight.abs().mean().item():.4f} m")
    print("sum of all |coefficients|", sum(p.detach().abs().sum() for p in model.parameters()).item())


run()
