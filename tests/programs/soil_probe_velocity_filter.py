#!/usr/bin/env python
"""Learns the noise of a constant-velocity Kalman layer from the packets of wireless soil probes.

The gateway acknowledges late now and then, and a probe then sends its packet a second time.
"""
import argparse
import logging
import sys

import torch
from torch import nn, Tensor
from torch.utils.checkpoint import checkpoint

log = logging.getLogger("probe")


def packet_log(n: int, repeat: float, seed: int):
    """Times (minutes) and readings of one probe; a repeated packet has the stamp and reading of the one before."""
    g = torch.Generator().manual_seed(seed)
    dt = 0.5 + torch.rand(n, generator=g)
    again = torch.rand(n, generator=g) < repeat
    again[0] = False
    dt = torch.where(again, torch.zeros(()), dt)
    t = dt.double().cumsum(0)
    level = 3 * torch.sin(t / 9) + 0.8 * torch.sin(t / 3.1)
    z = level + 0.15 * torch.randn(n, generator=g).double()
    keep = torch.arange(n)
    keep = torch.where(again, keep - 1, keep)
    z = z[keep]
    return t, z.float()


class KalmanLayer(nn.Module):
    def __init__(self, chunk: int = 6):
        super().__init__()
        self.log_q = nn.Parameter(torch.tensor(-2.0))
        self.log_r = nn.Parameter(torch.tensor(0.0))
        self.chunk = chunk

    def start(self, t: Tensor, z: Tensor):
        rate = (z[:, 1] - z[:, 0]) / (t[:, 1] - t[:, 0])
        x = torch.stack([z[:, 1], rate], -1)
        p = torch.eye(2).expand(len(z), 2, 2) * self.log_r.exp()
        return x, p

    def scan(self, x: Tensor, p: Tensor, dt: Tensor, z: Tensor):
        total = z.new_zeros(len(z))
        q, r = self.log_q.exp(), self.log_r.exp()
        eye = torch.eye(2)
        for k in range(z.shape[1]):
            f = eye.repeat(len(z), 1, 1)
            f[:, 0, 1] = dt[:, k]
            x = (f @ x[..., None])[..., 0]
            noise = torch.diag_embed(torch.stack([dt[:, k] ** 3 / 3, dt[:, k]], -1)) * q
            p = f @ p @ f.transpose(1, 2) + noise
            s = p[:, 0, 0] + r
            gain = p[:, :, 0] / s[:, None]
            nu = z[:, k] - x[:, 0]
            x = x + gain * nu[:, None]
            p = p - gain[:, :, None] * p[:, 0:1, :]
            total = total + 0.5 * (nu ** 2 / s + s.log())
        return x, p, total

    def forward(self, t: Tensor, z: Tensor):
        x, p = self.start(t, z)
        dt = (t[:, 1:] - t[:, :-1])[:, 1:]
        rest = z[:, 2:]
        total = 0.0
        for a in range(0, rest.shape[1], self.chunk):
            b = a + self.chunk
            x, p, part = checkpoint(self.scan, x, p, dt[:, a:b], rest[:, a:b], use_reentrant=False)
            total = total + part
        return total / rest.shape[1], x


class ProbeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.calibrate = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
        self.filter = KalmanLayer()

    def forward(self, t: Tensor, z: Tensor):
        fixed = z + 0.1 * self.calibrate(z[..., None]).squeeze(-1)
        return self.filter(t, fixed)


def main(argv=None) -> int:
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=45)
    ap.add_argument("--window", type=int, default=20)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--repeat", type=float, default=0.006)
    args = ap.parse_args(argv)
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(name)s %(message)s")
    torch.manual_seed(2)
    t, z = packet_log(args.steps * args.window * args.batch, args.repeat, seed=36)
    t = t.view(args.steps, args.batch, args.window)
    z = z.view(args.steps, args.batch, args.window)
    model = ProbeModel()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=1e-3)
    for step in range(args.steps):
        minutes = (t[step] - t[step, :, :1]).float()
        nll, state = model(minutes, z[step])
        loss = nll.mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        log.info("step %d nll %.6f", step + 1, loss.item())
        sys.stdout.flush()
    log.info("weights %.6f", sum(p.detach().abs().sum().item() for p in model.parameters()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
