"""Sources of random numbers that a program keeps for itself and hands to its model: their states are no one else's."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch


def kinds() -> tuple[type, ...]:
    """The classes of such sources; those of numpy where the program has imported it."""
    numpy: Any = sys.modules.get("numpy")
    of_numpy = (numpy.random.Generator, numpy.random.RandomState) if numpy is not None else ()
    return (torch.Generator, random.Random, *of_numpy)


def state_kept(source: Any) -> Callable[[], object] | None:
    """What gives a source the state back that it has now; None for what is none."""
    if not isinstance(source, kinds()) or isinstance(source, random.SystemRandom):
        return None
    if isinstance(source, random.Random):
        return partial(source.setstate, source.getstate())
    bits = getattr(source, "bit_generator", None)
    if bits is not None:  # numpy's Generator
        return partial(setattr, bits, "state", bits.state)
    return partial(source.set_state, source.get_state())
