"""Sources of random numbers that a computation makes for itself from a seed, so that the same numbers come again."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from finitune.monitor.probes.random_sources import kinds


def is_source(value: Any) -> bool:
    return type(value) in kinds()


def makes_source(called: Any, args: Sequence[Any]) -> bool:
    """Whether this makes one: of torch's kind, which is seeded by a method, or from a seed."""
    if called is torch.Generator:
        return all(isinstance(each, str | torch.device) for each in args)
    np: Any = sys.modules.get("numpy")
    makers = (random.Random, *((np.random.default_rng, np.random.RandomState) if np is not None else ()))
    known = called is not None and any(called is each for each in makers)
    return known and bool(args) and all(isinstance(each, int) for each in args)


def draws_from(named: Mapping[str, Any]) -> Any:
    """The source that a function of torch is told to draw from; None where it is told none."""
    given = named.get("generator")
    return given if is_source(given) else None
