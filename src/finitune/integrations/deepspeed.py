"""DeepSpeed: an engine that is made under `finitune run` is watched through the optimizer that it really steps.

In a script, `finitune.watch(engine, optimizer)` after `deepspeed.initialize` does the same.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from finitune.monitor.process import active

AFTER = ("deepspeed.runtime.engine",)


def attach() -> None:
    """Watch every engine that this process makes from now on."""
    from deepspeed.runtime.engine import DeepSpeedEngine  # pyright: ignore[reportMissingImports]

    make = DeepSpeedEngine.__init__

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        try:
            _follow(self)
        except Exception as error:
            print(f"finitune: this engine is not watched ({type(error).__name__}: {error})", file=sys.stderr)

    DeepSpeedEngine.__init__ = made


def _follow(engine: Any) -> None:
    """The user's optimizer was watched as soon as it was made; from now on the engine's own is."""
    if engine.optimizer is None:
        return  # inference
    monitor = active()
    if monitor is not None:
        monitor.follow(getattr(engine, "basic_optimizer", None), engine.optimizer, engine)
