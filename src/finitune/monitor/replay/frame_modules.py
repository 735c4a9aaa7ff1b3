"""A tensor that is not finite in a module that no optimizer trains: a codebook, running statistics, a frozen network.

Such modules are known to nobody but the program itself: they are looked for in the variables of the frames that run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from finitune.finding import Origin
from finitune.monitor.replay.locate import bad_leaf, named_tensors
from finitune.monitor.replay.source_line import user_frames

MOST_MODULES = 64
"""Looked at in the variables of all frames together."""


def bad_tensor(known: set[int]) -> Origin | None:
    """The first parameter or buffer that holds NaN or +inf, under the name of its variable; None where there is none.
    `known` are the identities of modules that were looked at before.
    """
    left = MOST_MODULES
    for frame in user_frames():
        for name, module in _modules(frame.f_locals):
            if id(module) in known or not left:
                continue
            left -= 1
            known |= {id(inner) for inner in module.modules()}
            found = bad_leaf([(f"{name}.{own}", tensor) for own, tensor in named_tensors(module)], ())
            if found is not None:
                return found
    return None


def _modules(variables: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    """Those that a variable holds, and those of the object whose method runs."""
    own = variables.get("self")
    inner = vars(own) if hasattr(own, "__dict__") and not isinstance(own, nn.Module) else {}
    for prefix, held in (("", variables), ("self.", inner)):
        for name, value in list(held.items()):
            if isinstance(value, nn.Module):
                yield f"{prefix}{name}", value
