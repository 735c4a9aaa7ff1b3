"""A captured step for the tests of replay, and the origin of one whose model runs a function of the test."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from finitune.monitor.capture.step import Capture
from finitune.monitor.origin.locate import locate
from finitune.monitor.replay.rerun import Setting
from finitune.monitor.watch import watch


def capture_of(model, loss, *, micro_steps=1, autocast=None, scale=1.0, optimizer=None) -> Setting:
    """The setting of one step on `model`: `loss(number)` makes the loss of each micro-step."""
    optimizer = optimizer or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with TemporaryDirectory() as directory, watch(model, optimizer, run_dir=Path(directory) / "run") as monitor:
        for number in range(micro_steps):
            with torch.autocast("cpu", autocast) if autocast else contextlib.nullcontext():
                one = loss(number)
            (one * scale if scale != 1 else one).backward()
        setting = Setting(
            model=model,
            capture=Capture(micro_steps=list(monitor._pendings.get().micro_steps)),
            scale=scale,
            optimizer=optimizer,
        )
    model.zero_grad()
    assert setting.capture.runnable is None, setting.capture.runnable
    return setting


class Body(nn.Module):
    """Runs one function between two linear layers; `line` is where that function's first statement stands."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        source, begins = inspect.getsourcelines(function)
        self.lines = range(begins, begins + len(source) + 1)

    def forward(self, x):
        return self.function(x)


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.before = nn.Linear(5, 4)
        self.body = Body(function)
        self.after = nn.Linear(4, 3)

    def forward(self, x):
        return self.after(self.body(self.before(x)))


def origin_of(function, dtype=torch.float32):
    model = Net(function).to(dtype)
    x = torch.randn(2, 3, 5, dtype=dtype, generator=torch.Generator().manual_seed(1))
    located = locate(capture_of(model, lambda _: model(x).mean()))
    return located, model.body
