"""All that lives inside a training process; `finitune.watch` starts it. Each name loads torch when it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finitune.monitor.gate import MODES as MODES
    from finitune.monitor.gate import Mode as Mode
    from finitune.monitor.gate import Monitor as Monitor
    from finitune.monitor.gate import Stopped as Stopped
    from finitune.monitor.gate import watch as watch

__all__ = ["MODES", "Mode", "Monitor", "Stopped", "watch"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("finitune.monitor.gate"), name)
    raise AttributeError(f"module 'finitune.monitor' has no attribute {name!r}")
