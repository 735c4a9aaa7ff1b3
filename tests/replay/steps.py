"""A captured step for the tests of replay."""

from __future__ import annotations

import contextlib
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from finitune.monitor import watch
from finitune.replay.rerun import Setting


def capture_of(model, loss, *, micro_steps=1, autocast=None, scale=1.0, optimizer=None) -> Setting:
    """The setting of one step on `model`: `loss(number)` makes the loss of each micro-step."""
    optimizer = optimizer or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with TemporaryDirectory() as directory, watch(model, optimizer, run_dir=Path(directory) / "run") as monitor:
        for number in range(micro_steps):
            with torch.autocast("cpu", autocast) if autocast else contextlib.nullcontext():
                one = loss(number)
            (one * scale if scale != 1 else one).backward()
        setting = Setting(model=model, capture=monitor._capture, scale=scale, optimizer=optimizer)
    model.zero_grad()
    assert setting.capture.runnable is None, setting.capture.runnable
    return setting
