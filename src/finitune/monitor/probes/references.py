"""References that keep nothing alive, where what is meant allows it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def reference_to(thing: Any) -> Callable[[], Any]:
    """What gives it, or None where it is gone. An object of a class with slots alone may allow no weak reference, and
    is kept.
    """
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing
