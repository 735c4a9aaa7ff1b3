"""Eelgrass cover from drone tiles, corrected for where the drone was flown.

Flights cluster near the jetty, so tiles are weighted with exp(log target density - log flight density); both
densities are Gaussians fitted to positions, all of it in numpy since the survey people gave us numpy code.
"""
import numpy as np
import torch

rng = np.random.default_rng(77)
torch.manual_seed(77)
np.seterr(all="ignore")  # their code divides by zero at the shore line, harmless

JETTY = np.array([0.3, 0.4], dtype=np.float32)


def log_gauss(xy, mean, sd):
    z = (xy - mean) / sd
    return (-0.5 * (z ** 2).sum(1) - 2 * np.log(sd) - np.log(2 * np.pi)).astype(np.float32)


def flight_batch(i, n=32):
    """Positions in km relative to the chart's origin, colour features, cover in 0..1."""
    xy = (JETTY + 0.4 * rng.standard_normal((n, 2))).astype(np.float32)
    if i == 18:
        # one tile with the geotag of the ferry terminal: the camera had no fix at take-off
        xy[5] = (6.1, -4.2)
    depth = 1.5 + xy[:, 1] + 0.3 * rng.standard_normal(n)
    green = np.exp(-0.5 * (depth - 1.7) ** 2) + 0.1 * rng.standard_normal(n)
    feats = np.stack([depth, green, green * depth, rng.standard_normal(n)], 1).astype(np.float32)
    cover = (1 / (1 + np.exp(-(3 * green - 1.5)))).astype(np.float32)
    return xy, feats, cover


def importance(xy):
    log_w = log_gauss(xy, np.float32(0.5), np.float32(0.9)) - log_gauss(xy, JETTY, np.float32(0.4))
    w = np.exp(log_w)
    return w / w.sum() * len(w)


class RunningStandardiser:
    """Feature scaling with Welford's update (numpy, float64)."""

    def __init__(self, d):
        self.n, self.mean, self.m2 = 0, np.zeros(d), np.zeros(d)

    def __call__(self, x):
        for row in x.astype(np.float64):
            self.n += 1
            delta = row - self.mean
            self.mean += delta / self.n
            self.m2 += delta * (row - self.mean)
        sd = np.sqrt(self.m2 / max(self.n - 1, 1)) + 1e-6
        return ((x - self.mean) / sd).astype(np.float32)


def effective_size(w):
    return float(w.sum() ** 2 / (w ** 2).sum())


def build():
    return torch.nn.Sequential(torch.nn.Linear(4, 24), torch.nn.ELU(), torch.nn.Linear(24, 1), torch.nn.Sigmoid())


def run(n_batches=40):
    net = build()
    opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
    standardise = RunningStandardiser(4)
    for i in range(n_batches):
        xy, feats, cover = flight_batch(i)
        weight = importance(xy)
        x = torch.from_numpy(standardise(feats))
        y = torch.from_numpy(cover)
        w = torch.from_numpy(weight)

        pred = net(x).squeeze(1)
        sq = (pred - y) ** 2
        loss = (w * sq).mean()

        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"flight {i + 1:02d}  loss {loss.item():.7f}  plain {sq.mean().item():.7f}  ess {effective_size(weight):.2f}")
    return net


net = run()
print("weights sum:", f"{float(sum(p.detach().numpy().astype(np.float64).sum() for p in net.parameters())):.6f}")
