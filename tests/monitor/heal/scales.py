"""Runs in float16 whose loss scale lacks room; the gradient of one token's row decides what scale the step bears."""

from __future__ import annotations

import dataclasses

import torch

from finitune.gym.data import batches
from finitune.gym.loop import Options, prepare
from finitune.gym.loss_scale import DynamicLossScaler
from finitune.gym.models import tiny

STEPS = 40


@dataclasses.dataclass
class FixedScale:
    """As DeepSpeed keeps a fixed one."""

    cur_scale: float
    dynamic: bool = False

    @property
    def scale(self):
        return self.cur_scale

    def update(self, *, overflow):
        pass


def in_float16(scaler, steps=STEPS, family="llama", seed=0):
    """The gradients of this model leave float16 at a loss scale of 2**20 or so."""
    options = Options(dtype="float16", scaler=scaler)
    return prepare(tiny(family, seed=seed), batches(steps, seed=seed), lambda p: torch.optim.AdamW(p, lr=1e-3), options)


def with_grad_scaler(interval, steps=STEPS, scale=2.0**16):
    options = Options(dtype="float16-autocast", initial_scale=scale)
    run = prepare(tiny("llama"), batches(steps), lambda p: torch.optim.AdamW(p, lr=1e-3), options)
    run.grad_scaler.set_growth_interval(interval)
    return run


def short_window(window=4, **more):
    return lambda: DynamicLossScaler(scale=2.0**16, window=window, hysteresis=1, **more)
