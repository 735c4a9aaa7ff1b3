"""Sources of random numbers that a program keeps for itself and hands to its model: their states are no one else's."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch


def state_kept(source: Any) -> Callable[[], object] | None:
    """What gives a source the state back that it has now; None for what is none."""
    if isinstance(source, torch.Generator):
        return partial(source.set_state, source.get_state())
    if isinstance(source, random.Random):
        return None if isinstance(source, random.SystemRandom) else partial(source.setstate, source.getstate())
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(source, numpy.random.Generator):
        return partial(setattr, source.bit_generator, "state", source.bit_generator.state)
    if numpy is not None and isinstance(source, numpy.random.RandomState):
        return partial(source.set_state, source.get_state())
    return None
