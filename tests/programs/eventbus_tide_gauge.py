"""Tide gauge residuals, Gaussian NLL head, trained by an event bus: every part subscribes to topics."""
from collections import defaultdict
import math

import torch
from torch import nn


class Bus:
    def __init__(self):
        self._subs = defaultdict(list)

    def on(self, topic, prio=0):
        def deco(fn):
            self._subs[topic].append((prio, fn))
            self._subs[topic].sort(key=lambda s: -s[0])
            return fn
        return deco

    def emit(self, topic, **payload):
        for _, fn in self._subs[topic]:
            fn(**payload)


class GaugeNet(nn.Module):
    def __init__(self, d=8, h=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU())
        self.mu = nn.Linear(h, 1)
        self.logvar = nn.Linear(h, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.mu(h).float(), self.logvar(h).float().clamp(-6, 4)


torch.manual_seed(404)
bus = Bus()
net = GaugeNet()
optimizer = torch.optim.AdamW(net.parameters(), lr=6e-3)
# start high on purpose, the scaler comes down by itself within a few steps
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 31, backoff_factor=2.0 ** -10, growth_interval=100)
ctx = {"step": 0, "loss": None, "surges": 0, "surge_hits": 0}


def tide(n=64):
    t = torch.rand(n, 1) * 40
    k = torch.arange(1, 5).float()
    feats = torch.cat([torch.sin(t * k * 0.5), torch.cos(t * k * 0.5)], 1)
    level = 0.8 * feats[:, :1] - 0.3 * feats[:, 5:6] + 0.004 * torch.randn(n, 1)   # metres: tiny noise
    return feats, level


@bus.on("batch")
def forward_backward(x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        mu, logvar = net(x)
    nll = 0.5 * (logvar + (y - mu).square() * torch.exp(-logvar) + math.log(2 * math.pi))
    ctx["loss"] = nll.mean()              # a density: goes below zero once sigma < 0.24
    ctx["mu"] = mu.detach()
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(ctx["loss"]).backward()
    bus.emit("gradients")


@bus.on("gradients", prio=10)
def freeze_early_variance(**_):
    # first ten steps: fit the mean only, the variance head waits
    if ctx["step"] <= 10:
        for p in net.logvar.parameters():
            p.grad = None


@bus.on("gradients", prio=5)
def apply_step(**_):
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() < before:
        bus.emit("scaler-backoff", scale=scaler.get_scale())


@bus.on("scaler-backoff")
def note(scale):
    print(f"   (scale now {scale:.0f})")


@bus.on("batch-done")
def surge_recall(y):
    # storm surges are above 1.05 m: most batches hold none, the recall is then nan in the log
    surge = y > 1.05
    n = int(surge.sum())
    hit = int((surge & (ctx["mu"] > 1.05)).sum())
    ctx["recall"] = hit / n if n else float("nan")


@bus.on("batch-done", prio=-1)
def log(y):
    print(f"[{ctx['step']:02d}] nll {ctx['loss'].item():+.5f} surge recall {ctx['recall']:.2f}")


@bus.on("epoch")
def restart(epoch):
    for g in optimizer.param_groups:
        g["lr"] = 6e-3 * 0.6 ** epoch


for epoch in range(4):
    bus.emit("epoch", epoch=epoch)
    for _ in range(14):
        ctx["step"] += 1
        x, y = tide()
        bus.emit("batch", x=x, y=y)
        bus.emit("batch-done", y=y)
print("weights", f"{sum(p.detach().double().sum().item() for p in net.parameters()):.6f}")
