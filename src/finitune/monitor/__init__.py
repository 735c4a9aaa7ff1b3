"""All that lives inside a training process; `finitune.watch` starts it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch as torch  # before every module here: under `finitune run` its import attaches the monitor

if TYPE_CHECKING:
    from finitune.monitor.process import Monitor as Monitor
    from finitune.monitor.process import Stopped as Stopped
    from finitune.monitor.process import active as active
    from finitune.monitor.run import Mode as Mode
    from finitune.monitor.watch import watch as watch

_HOMES = {"Mode": "run", "Monitor": "process", "Stopped": "process", "active": "process"}
__all__ = ["Mode", "Monitor", "Stopped", "active"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"finitune.monitor.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'finitune.monitor' has no attribute {name!r}")
