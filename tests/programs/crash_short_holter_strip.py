"""Arrhythmia on Holter strips of varying length, one strip at a time with gradients summed over six strips.

The strips come as a generator of dictionaries; steps are registered with a decorator, as in our other pipelines."""
import functools
import math

import torch
from torch import nn

PIPELINE = {}


def stage(name):
    def register(fn):
        @functools.wraps(fn)
        def logged(*args, **kwargs):
            logged.calls += 1
            return fn(*args, **kwargs)

        logged.calls = 0
        PIPELINE[name] = logged
        return logged

    return register


def strips(n, seed):
    gen = torch.Generator().manual_seed(seed)
    for i in range(n):
        seconds = 4 + 6 * torch.rand((), generator=gen).item()
        if i == 57:
            seconds = 0.35                       # electrode came off
        t = torch.arange(int(seconds * 125)) / 125
        irregular = bool(torch.rand((), generator=gen) < 0.5)
        wobble = 0.9 * torch.sin(0.9 * t) if irregular else torch.zeros_like(t)
        beat = torch.exp(-40 * (1 - torch.cos(2 * math.pi * 1.2 * t + wobble)))
        yield {"lead": beat + 0.05 * torch.randn(len(t), generator=gen), "irregular": float(irregular)}


class Beats(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, width, 15, stride=3), nn.ReLU(),
            nn.Conv1d(width, width, 15, stride=3), nn.ReLU(),
        )
        self.judge = nn.Linear(2 * width, 1)

    def forward(self, lead):
        h = self.features(lead[None, None])
        return self.judge(torch.cat([h.mean(-1), h.amax(-1)], dim=1)).squeeze()


@stage("normalise")
def normalise(strip):
    lead = strip["lead"]
    return {**strip, "lead": (lead - lead.mean()) / lead.std()}


@stage("loss")
def strip_loss(model, strip):
    return nn.functional.binary_cross_entropy_with_logits(model(strip["lead"]), torch.tensor(strip["irregular"]))


@stage("update")
def update(opt):
    opt.step()
    opt.zero_grad()


def run(model, source, opt, every=6):
    running = 0.0
    for i, strip in enumerate(source, 1):
        loss = PIPELINE["loss"](model, PIPELINE["normalise"](strip)) / every
        loss.backward()
        running += loss.item()
        if i % every == 0:
            PIPELINE["update"](opt)
            print(f"update {PIPELINE['update'].calls} loss {running:.4f}", flush=True)
            running = 0.0


torch.manual_seed(41)
net = Beats()
run(net, strips(96, seed=42), torch.optim.NAdam(net.parameters(), lr=4e-3))
print("finite", int(all(p.isfinite().all() for p in net.parameters())))
