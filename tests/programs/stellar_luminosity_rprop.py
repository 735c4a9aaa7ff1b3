"""Mass-luminosity relation fitted in SI units (watts!), with a hand-written iRprop- that reads only gradient signs."""
import numpy as np
import torch
from torch import nn

L_SUN = 3.828e26


class IRpropMinus(torch.optim.Optimizer):
    def __init__(self, params, step0=1e-2, up=1.2, down=0.5, low=1e-7, high=0.3):
        super().__init__(params, dict(step0=step0, up=up, down=down, low=low, high=high))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["size"] = torch.full_like(p, group["step0"])
                    st["before"] = torch.zeros_like(p)
                agreement = torch.sign(p.grad * st["before"])
                factor = torch.ones_like(p)
                factor[agreement > 0] = group["up"]
                factor[agreement < 0] = group["down"]
                st["size"].mul_(factor).clamp_(group["low"], group["high"])
                grad = torch.where(agreement < 0, torch.zeros_like(p), p.grad)
                p.sub_(grad.sign() * st["size"])
                st["before"].copy_(grad)


class MassLuminosity(nn.Module):
    """log10 L as a small network of mass and metallicity; the output is in watts."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1))

    def forward(self, logmass, metal):
        dex = self.trunk(torch.stack([logmass, metal], -1)).squeeze(-1)
        return L_SUN * 10.0 ** dex


def catalogue(n=220):
    rng = np.random.default_rng(8)
    logmass = rng.uniform(-0.5, 1.3, n)
    metal = rng.normal(0, 0.2, n)
    dex = 3.5 * logmass - 0.3 * metal + rng.normal(0, 0.03, n)
    as_t = lambda a: torch.tensor(a, dtype=torch.float32)
    return as_t(logmass), as_t(metal), as_t(L_SUN * 10.0 ** dex)


def fit(epochs=45):
    torch.manual_seed(2)
    logmass, metal, watts = catalogue()
    model = MassLuminosity()
    opt = IRpropMinus(model.parameters())
    for epoch in range(1, epochs + 1):
        opt.zero_grad()
        loss = (model(logmass, metal) - watts).abs().sum()
        loss.backward()
        opt.step()
        print(f"epoch {epoch} total error {loss.item():.4e} W, per star {loss.item() / len(watts) / L_SUN:.5f} Lsun")
    return model


if __name__ == "__main__":
    fitted = fit()
    print("finite", int(all(p.isfinite().all() for p in fitted.parameters())))
