# P/S picker for a small local network.  Gathers of 12 stations; stations drop out (dead traces = zeros).
# Dead traces are normalised to nan on purpose (0/0) and taken out before the network sees them.
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

NSTA, NT, STEPS = 12, 256, 36
rng = np.random.default_rng(611)
torch.manual_seed(611)


def ricker(t, f):
    a = (math.pi * f * t) ** 2
    return (1 - 2 * a) * np.exp(-a)


def synth_gather(noise_only=False, telemetry_down=False):
    x = 0.15 * rng.standard_normal((NSTA, NT))
    p = np.full(NSTA, -1)
    s = np.full(NSTA, -1)
    if not noise_only:
        d = rng.uniform(5, 45, NSTA)
        t0 = rng.uniform(20, 50)
        t = np.arange(NT)
        for i in range(NSTA):
            p[i] = int(t0 + d[i] * 1.7)
            s[i] = int(t0 + d[i] * 1.7 * 1.73)
            x[i] += ricker((t - p[i]) / 100.0, 9.0) + 1.8 * ricker((t - s[i]) / 100.0, 5.0)
    x *= 10 ** rng.uniform(1, 4, (NSTA, 1))           # counts, gains differ
    dead = rng.random(NSTA) < 0.12
    if telemetry_down:
        dead[:] = True
    x[dead] = 0.0
    return x.astype("float32"), p, s


class Block(nn.Module):
    def __init__(self, c_in, c_out, dil):
        super().__init__()
        self.conv = nn.Conv1d(c_in, c_out, 7, padding=3 * dil, dilation=dil)
        self.norm = nn.GroupNorm(4, c_out)

    def forward(self, x):
        return F.gelu(self.norm(self.conv(x)))


class Picker(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = Block(1, width, 1)
        self.body = nn.ModuleList(Block(width, width, d) for d in (2, 4, 8))
        self.head = nn.Conv1d(width, 2, 1)

    def forward(self, x):
        h = self.stem(x)
        for b in self.body:
            h = h + b(h)
        return self.head(h)


def pick_loss(logits, p, s):
    """cross entropy over time; traces without a pick carry -1"""
    target = torch.stack([p, s], 1)
    has = target >= 0
    per = F.cross_entropy(logits.reshape(-1, NT), target.clamp(min=0).reshape(-1), reduction="none").reshape(has.shape)
    return (per * has).sum() / has.sum().clamp(min=1), per.detach(), has


def main():
    net = Picker()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-3)
    step = 0
    event = 0
    while step < STEPS:
        event += 1
        # every ninth trigger is a false one (quarry truck), the 14th gather came while telemetry was down
        x, p, s = synth_gather(noise_only=event % 9 == 0, telemetry_down=event == 14)
        x, p, s = torch.from_numpy(x), torch.from_numpy(p), torch.from_numpy(s)
        peak = x.abs().amax(1, keepdim=True)
        xn = x / peak                                   # dead: 0/0
        alive = torch.isfinite(xn).all(1)
        logamp = torch.log10(peak[:, 0])                # -inf where dead
        if not alive.any():
            print(f"event {event:02d} skipped, median log amplitude {logamp.median().item():.2f}", flush=True)
            continue
        loss, per, has = pick_loss(net(xn[alive].unsqueeze(1)), p[alive], s[alive])
        opt.zero_grad()
        loss.backward()                                 # noise only: zero loss, zero gradients, as wanted
        opt.step()
        step += 1
        ce_s = per[:, 1][has[:, 1]].mean().item()       # nan for noise
        print(f"step {step:02d} event {event:02d} live {int(alive.sum())} loss {loss.item():.6f} "
              f"S-term {ce_s:.4f} logamp {logamp.mean().item():.3f}", flush=True)
    print(f"weights {sum(q.detach().abs().sum().item() for q in net.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
