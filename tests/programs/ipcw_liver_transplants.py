import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def make_registry(n=384, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.normal(52, 9, n)
    meld = rng.gamma(6.0, 3.5, n)
    ischemia = rng.uniform(4, 12, n)
    risk = 0.03 * (age - 52) + 0.05 * (meld - 21) + 0.08 * (ischemia - 8)
    death = rng.weibull(1.3, n) * 6.0 * np.exp(-0.6 * risk)
    moved_away = rng.exponential(9.0, n)
    # patients who come for the third annual visit are followed through the national death index
    moved_away = np.where(moved_away > 3.0, np.inf, moved_away)
    # ... unless they withdraw their consent
    moved_away[201] = 24.8
    death[201] = max(death[201], 30.0)
    time = np.minimum(death, moved_away)
    event = (death <= moved_away).astype(np.float32)
    cov = np.stack([(age - 52) / 9, (meld - 21) / 8.5, (ischemia - 8) / 2.3], 1)
    return [torch.tensor(a, dtype=torch.float32) for a in (cov, time + 0.01, event)]


class CensoringCurve:
    """Kaplan-Meier estimate of P(not yet censored) over the rows at hand."""

    def __call__(self, time, event):
        order = torch.argsort(time)
        n = len(time)
        at_risk = torch.arange(n, 0, -1, dtype=torch.float32)
        lost = 1.0 - event[order]
        surv = torch.cumprod(1.0 - lost / at_risk, dim=0)
        out = torch.empty(n)
        out[order] = surv
        return out


class TransplantModel(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.log_time = nn.Linear(width, 1)

    def forward(self, cov):
        return self.log_time(self.trunk(cov)).squeeze(1)


class IPCWRegressor:
    def __init__(self, lr=0.01, batch_size=32, epochs=2, seed=5):
        torch.manual_seed(seed)
        self.model = TransplantModel()
        self.curve = CensoringCurve()
        self.opt = torch.optim.RMSprop(self.model.parameters(), lr=lr)
        self.batch_size, self.epochs, self.seed = batch_size, epochs, seed
        self.history = []

    @property
    def weight_norm(self):
        return torch.cat([p.detach().flatten() for p in self.model.parameters()]).norm().item()

    def _weights(self, time, event):
        still_followed = self.curve(time, event)
        return event / still_followed

    def _batches(self, n):
        gen = torch.Generator().manual_seed(self.seed)
        for _ in range(self.epochs):
            yield from torch.randperm(n, generator=gen).split(self.batch_size)

    def fit(self, cov, time, event):
        for idx in self._batches(len(cov)):
            c, t, d = cov[idx], time[idx], event[idx]
            w = self._weights(t, d)
            err = F.smooth_l1_loss(self.model(c), t.log(), reduction="none")
            loss = torch.einsum("i,i->", w, err) / len(idx)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            self.history.append(loss.item())
            print(f"step {len(self.history):2d}  ipcw loss {self.history[-1]:.5f}", flush=True)
        return self


if __name__ == "__main__":
    reg = IPCWRegressor().fit(*make_registry())
    print("final", round(reg.weight_norm, 4))
