"""Low-flow quantiles for four hill catchments: an LSTM over 30 days of rain, three quantile heads.

Gauges fail: days without a reading are NaN in the record and have no say in the pinball loss. A window
in which no gauge worked is left out. The heads run in float16 with a loss scale that starts high.
"""
import argparse

import numpy as np
import torch
from torch import nn

QUANTILES = torch.tensor([0.1, 0.5, 0.9])


def make_record(days, catchments, rng):
    rain = rng.gamma(0.4, 6.0, size=(days, catchments))
    flow = np.zeros_like(rain)
    store = np.full(catchments, 20.0)
    k = np.array([0.05, 0.08, 0.12, 0.2])[:catchments]
    for d in range(days):
        store = store + rain[d]
        flow[d] = k * store
        store = store - flow[d]
    flow = np.log1p(flow) + 0.02 * rng.standard_normal(flow.shape)
    flow[rng.random(flow.shape) < 0.25] = np.nan       # single days without reading
    flow[140:190] = np.nan                             # the flood of that autumn took all the gauges
    return (torch.tensor(rain / 10, dtype=torch.float32),
            torch.tensor(flow, dtype=torch.float32))


class QuantileLSTM(nn.Module):
    def __init__(self, catchments, hidden=24):
        super().__init__()
        self.where = nn.Embedding(catchments, 4)
        self.lstm = nn.LSTM(5, hidden, batch_first=True)
        self.trunk = nn.Linear(hidden, 32)
        self.heads = nn.ModuleList(nn.Linear(32, 1) for _ in QUANTILES)

    def forward(self, rain, site):
        e = self.where(site)[:, None].expand(-1, rain.shape[1], -1)
        h, _ = self.lstm(torch.cat([rain[..., None], e], -1))
        with torch.autocast("cpu", dtype=torch.float16):
            z = torch.tanh(self.trunk(h[:, -7:]))
            out = torch.cat([head(z) for head in self.heads], -1)
        return out.float()


def pinball(pred, obs):
    seen = ~torch.isnan(obs)
    err = torch.where(seen, obs, pred.detach().mean(-1))[..., None] - pred
    loss = torch.maximum(QUANTILES * err, (QUANTILES - 1) * err)
    return (loss * seen[..., None]).sum() / (seen.sum() * len(QUANTILES))


def nash_sutcliffe(pred, obs):
    """As the gauging office reports it, which is nan wherever there is a gap."""
    return 1 - ((pred[..., 1] - obs) ** 2).sum() / ((obs - obs.mean()) ** 2).sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--lr", type=float, default=6e-3)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    rain, flow = make_record(420, 4, rng)
    model = QuantileLSTM(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=15)
    site = torch.arange(4).repeat_interleave(7)
    for start in range(0, 385, 7):
        ends = torch.arange(start, start + 7) + 30
        if ends.max() >= len(rain):
            break
        x = torch.stack([rain[e - 30:e, s] for s in range(4) for e in ends])
        y = torch.stack([flow[e - 7:e, s] for s in range(4) for e in ends])
        if torch.isnan(y).all():
            print(f"week {start // 7:3d} no gauge", flush=True)
            continue
        optimizer.zero_grad()
        pred = model(x, site)
        loss = pinball(pred, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        nse = nash_sutcliffe(pred.detach(), y)
        print(f"week {start // 7:3d} pinball {loss.item():.6f} nse {nse:.3f} scale {scaler.get_scale():.0f}", flush=True)
    print(f"{sum(p.abs().sum() for p in model.parameters()).item():.6f}")


if __name__ == "__main__":
    main()
