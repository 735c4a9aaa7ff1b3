# Calibration of a tide-gauge filter with an optimizer of our own. Each weight has a private trust radius, infinite
# until its gradient changes sign for the first time; from then on the radius only tightens (Rprop's memory, without
# its growth) and the step of plain momentum is clamped to it.
from io import StringIO
import csv
import math

import torch
from torch import nn


class TighteningTrust(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.8, shrink=0.7):
        super().__init__(params, dict(lr=lr, momentum=momentum, shrink=shrink))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["velocity"] = torch.zeros_like(p)
                    st["previous"] = torch.zeros_like(p)
                    st["radius"] = torch.full_like(p, math.inf)
                flipped = st["previous"] * p.grad < 0
                st["velocity"].mul_(group["momentum"]).add_(p.grad, alpha=-group["lr"])
                tighter = torch.minimum(st["radius"], st["velocity"].abs()) * group["shrink"]
                st["radius"] = torch.where(flipped, tighter + 1e-5, st["radius"])
                p.add_(torch.minimum(torch.maximum(st["velocity"], -st["radius"]), st["radius"]))
                st["previous"].copy_(p.grad)
        return loss

    def free_weights(self):
        return sum(int(torch.isinf(s["radius"]).sum()) for s in self.state.values())


def gauge_csv(hours=720):
    out = StringIO()
    w = csv.writer(out)
    w.writerow(["hour", "level_cm", "pressure_hpa"])
    gen = torch.Generator().manual_seed(31)
    storm = torch.randn(hours, generator=gen).cumsum(0) * 0.4
    for h in range(hours):
        m2 = 140 * math.cos(2 * math.pi * h / 12.4206)
        k1 = 30 * math.cos(2 * math.pi * h / 23.9345 + 0.7)
        w.writerow([h, f"{m2 + k1 - storm[h].item():.2f}", f"{1013 + storm[h].item():.2f}"])
    out.seek(0)
    return out


rows = list(csv.DictReader(gauge_csv()))
level = torch.tensor([float(r["level_cm"]) for r in rows])
pressure = torch.tensor([float(r["pressure_hpa"]) for r in rows]) - 1013.0
level, pressure = level / level.std(), pressure / pressure.std()
windows = level.unfold(0, 36, 1)[:-1]
X = torch.cat([windows, pressure[35:-1, None]], dim=1)
Y = level[36:]

torch.manual_seed(32)
net = nn.Sequential(nn.Linear(37, 24), nn.Tanh(), nn.Linear(24, 1))
opt = TighteningTrust(net.parameters())

for it in range(40):
    pick = torch.arange(it % 4, len(X), 4)

    def closure():
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(X[pick])[:, 0], Y[pick])
        loss.backward()
        return loss

    loss = opt.step(closure)
    print(f"{it:3d} {loss.item():.5f} untightened {opt.free_weights()}")

print("finite", int(all(p.isfinite().all() for p in net.parameters())))
