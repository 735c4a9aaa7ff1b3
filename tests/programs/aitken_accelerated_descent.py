# Componentwise Aitken delta-squared on top of plain gradient descent, after a burn-in.
# Test problem: multivariate calibration of a 20-channel diode-array spectrometer.
import torch
from torch.optim import Optimizer


class AitkenGD(Optimizer):
    def __init__(self, params, lr=1e-2, burn_in=18):
        super().__init__(params, dict(lr=lr, burn_in=burn_in))

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if len(st) == 0:
                    st["k"] = 0
                st["k"] += 1
                x0 = p.clone()
                x1 = x0 - group["lr"] * p.grad
                last = st.get("move")
                st["move"] = x1 - x0
                if st["k"] <= group["burn_in"]:
                    p.copy_(x1)
                    continue
                # geometric tail: moves shrink by `ratio`, so sum the rest of the series
                ratio = st["move"] / last
                ratio = ratio.clamp(-0.5, 0.75)
                p.copy_(x0 + st["move"] / (1 - ratio))
        return loss


class Calibration(torch.nn.Module):
    def __init__(self, channels, analytes):
        super().__init__()
        self.loading = torch.nn.Parameter(0.1 * torch.randn(analytes, channels))
        self.offset = torch.nn.Parameter(torch.zeros(analytes))

    def forward(self, absorbance):
        return absorbance @ self.loading.t() + self.offset


torch.manual_seed(4)
channels, analytes, n = 20, 3, 90
pure = torch.rand(analytes, channels)
conc = torch.rand(n, analytes)
spectra = conc @ pure + 0.01 * torch.randn(n, channels)
spectra = spectra - spectra.mean(0)
spectra[:, 13] = 0          # diode 13 is blind

net = Calibration(channels, analytes)
opt = AitkenGD(net.parameters(), lr=0.15)

for k in range(1, 51):
    opt.zero_grad()
    err = net(spectra) - conc
    loss = (err ** 2).sum(1).mean()
    loss.backward()
    opt.step()
    print(k, "rss", "%.9f" % float(loss))

print("final", "%.6f" % sum(float(q.abs().sum()) for q in net.parameters()))
