"""Student-t next-day density for dry-bulk freight futures.

Halted contracts have no return; they are carried as NaN in the panel and taken out of the likelihood.
"""
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import StudentT

N_CONTRACTS, N_DAYS, WINDOW = 18, 420, 30
EPOCH_STEPS = 48


def simulate_panel(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    vol = np.full(N_CONTRACTS, 0.01)
    out = np.empty((N_DAYS, N_CONTRACTS))
    for d in range(N_DAYS):
        market = rng.standard_t(4) * 0.6
        vol = 0.0005 + 0.93 * vol + 0.05 * np.abs(out[d - 1] if d else vol)
        out[d] = vol * (market + rng.standard_t(4, N_CONTRACTS))
    # the regime break: canal closed, volatility times eight for a fortnight
    out[260:274] *= 8.0
    halted = rng.random(out.shape) < 0.04
    halted[150] = True                       # exchange holiday: the whole row
    out[halted] = np.nan
    return out.astype(np.float32)


class TailNet(nn.Module):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.contract = nn.Embedding(N_CONTRACTS, 6)
        self.lstm = nn.LSTM(2 + 6, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 3)

    def forward(self, r: Tensor, seen: Tensor) -> StudentT:
        b, t = r.shape
        who = self.contract(torch.arange(b))[:, None].expand(b, t, -1)
        x = torch.cat([torch.stack([r * 50.0, seen.float()], -1), who], -1)
        raw = self.out(self.lstm(x)[0])
        df = 2.1 + nn.functional.softplus(raw[..., 0] + 1.0)
        scale = 1e-4 + 0.01 * nn.functional.softplus(raw[..., 2])
        return StudentT(df, 0.001 * raw[..., 1], scale)


def nll(dist: StudentT, target: Tensor, seen: Tensor) -> Tensor:
    filled = torch.where(seen, target, torch.zeros_like(target))
    pointwise = -dist.log_prob(filled)
    return (pointwise * seen).sum() / seen.sum()


def windows(panel: Tensor, rng: np.random.Generator):
    last = N_DAYS - WINDOW - 1
    for k in range(EPOCH_STEPS):
        start = int(k * last / (EPOCH_STEPS - 1))          # walk forward in time
        start = min(last, max(0, start + int(rng.integers(-2, 3))))
        yield start, panel[start:start + WINDOW + 1].T


def main() -> None:
    torch.manual_seed(77)
    rng = np.random.default_rng(77)
    panel = torch.from_numpy(simulate_panel(77))
    net = TailNet()
    opt = torch.optim.RMSprop(net.parameters(), lr=2e-3)
    best = float("inf")
    for step, (start, chunk) in enumerate(windows(panel, rng), 1):
        seen = ~torch.isnan(chunk)
        clean = torch.nan_to_num(chunk, nan=0.0)
        dist = net(clean[:, :-1], seen[:, :-1])
        loss = nll(dist, chunk[:, 1:], seen[:, 1:])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        best = min(best, loss.item())
        realised = chunk[:, 1:].std(dim=1).mean()          # NaN wherever a contract was halted
        print(f"{step:3d} day {start:3d} nll {loss.item():+.6f} best {best:+.6f} "
              f"df {dist.df.mean().item():.4f} realised {realised.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
