"""What lives in this process, where nothing leads from the thing that is known to the one that is looked for."""

from __future__ import annotations

import gc
from typing import Any


def living() -> list[Any]:
    """Every object that the collector tracks, those set aside by `gc.freeze()` too.

    Unsloth freezes all that is there when a training begins, the model among it, until the training ends. What was
    frozen is frozen again, and with it what has been made since.
    """
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        if frozen:
            gc.freeze()
