"""Sparse codes for geyser temperature loggers.

The network knows nothing about its penalties: forward hooks look at activations and drop
auxiliary terms into a list, the loop adds up whatever is in there.
"""
from contextlib import contextmanager

import torch
import torch.nn as nn

torch.manual_seed(90)
torch.set_num_threads(1)

AUX = []


def kl_sparsity(rho, weight):
    def hook(module, args, out):
        if not module.training:
            return
        q = out.mean(dim=0)
        kl = rho * torch.log(rho / q) + (1 - rho) * torch.log((1 - rho) / (1 - q))
        AUX.append(("kl", weight * kl.sum()))
    return hook


def decorrelate(weight):
    def hook(module, args, out):
        if module.training:
            c = out - out.mean(0)
            cov = c.t() @ c / len(c)
            off = cov - torch.diag(torch.diag(cov))
            AUX.append(("decor", weight * off.pow(2).mean()))
    return hook


@contextmanager
def hooked(*pairs):
    handles = [m.register_forward_hook(h) for m, h in pairs]
    try:
        yield
    finally:
        for h in handles:
            h.remove()


class Logger(nn.Module):
    def __init__(self, n=12, code=18):
        super().__init__()
        self.lift = nn.Linear(n, code)
        self.gate = nn.Sigmoid()
        self.drop = nn.Linear(code, n)

    def forward(self, x):
        return self.drop(self.gate(self.lift(x)))


def eruptions(steps, size):
    g = torch.Generator().manual_seed(44)
    t = torch.linspace(0, 1, 12)
    for k in range(steps):
        phase = torch.rand(size, 1, generator=g)
        celsius = 60 + 30 * torch.sin(6.28 * (t + phase)) + 2 * torch.randn(size, 12, generator=g)
        # logger firmware of the third week: one download in millikelvin
        if k == 21:
            celsius = (celsius + 273.15) * 1000
        yield (celsius - 60) / 30


model = Logger()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
ema = None
with hooked((model.gate, kl_sparsity(0.15, 0.02)), (model.gate, decorrelate(0.5)), (model.lift, decorrelate(1e-3))):
    for step, x in enumerate(eruptions(34, 24), 1):
        AUX.clear()
        out = model(x)
        # the reconstruction is robust, outliers are nothing new here
        recon = nn.functional.smooth_l1_loss(out, x)
        loss = recon
        for _, term in AUX:
            loss = loss + term
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        opt.step()
        parts = {}
        for name, term in AUX:
            parts[name] = parts.get(name, 0.0) + term.item()
        print(f"step={step:03d} loss={loss.item():.6f} recon={recon.item():.6f} " +
              " ".join(f"{k}={v:.6f}" for k, v in parts.items()))

model.eval()
with torch.no_grad():
    s = sum(p.sum() for p in model.parameters())
print("hooks left:", len(model.gate._forward_hooks), "weights:", f"{s.item():.6f}")
