"""Functions of the user's that have called a model and returned since: of their variables what is small, kept until
the next step, so that what they computed can be computed again.

A loop that calls its backward by itself still runs when a step is judged; a `training_step`, a `compute_loss`, a
function that renders or decodes does not. Only those are kept: what is live is looked at where it is.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from finitune.monitor.probes.surroundings import Randomness
from finitune.monitor.user_code.frame_variables import locals_of
from finitune.monitor.user_code.source_line import user_frames
from finitune.monitor.user_code.source_tree import loops_at, nodes_in, scope_of

DEEPEST = 4
"""Functions within one another that are kept of one call."""
SMALL, MOST = 2**16, 16
"""Bytes of a tensor, and elements of a container."""
_ACTS = ("backward", "manual_backward", "step")
_LOOKS = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""Up to Python 3.12 these share one copy of the variables with whoever looks at the frame, which is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedFrame:
    """As the frame was when it called the model, with the names of its attributes."""

    f_code: CodeType
    f_globals: Mapping[str, Any]
    f_locals: Mapping[str, Any]
    """What was small, and what it computes with."""
    f_lineno: int
    randomness: Randomness | None = None
    """Before the call; None where it is not known."""


def remembered(randomness: Randomness | None = None, acts: tuple[str, ...] = _ACTS) -> tuple[EndedFrame, ...]:
    """The functions that run now and will have ended before their step is judged, innermost first: none that calls one
    of `acts`.
    """
    found: list[EndedFrame] = []
    for frame in islice(user_frames(), DEEPEST):
        if not _ends(frame.f_code, frame.f_lineno, acts):
            break
        kept = {name: value for name, value in locals_of(frame).items() if name == "self" or _is_kept(value)}
        found.append(EndedFrame(
            f_code=frame.f_code, f_globals=frame.f_globals, f_locals=kept, f_lineno=frame.f_lineno,
            randomness=randomness,
        ))  # fmt: skip
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenGradient:
    """With which the loop has begun a backward."""

    tensor: Tensor
    """Itself, at most `SMALL` bytes."""
    callers: tuple[EndedFrame, ...]
    """The functions that gave it and will have ended when the step is judged, innermost first."""

    @staticmethod
    def among(gradients: Iterable[Any]) -> GivenGradient | None:
        """The first that is more than the factor of a loss; None where there is none, or it is large."""
        given = (each for each in gradients if isinstance(each, Tensor) and each.numel() > 1)
        first = next(given, None)
        if first is None or first.nbytes > SMALL:
            return None
        return GivenGradient(tensor=first, callers=remembered(acts=("step",)))


def ended(those: Iterable[EndedFrame]) -> Iterator[EndedFrame]:
    """Those that do not run now."""
    running = {frame.f_code for frame in user_frames()}
    return (one for one in those if one.f_code not in running)


@lru_cache(maxsize=256)
def _ends(code: CodeType, line: int, acts: tuple[str, ...]) -> bool:
    """A function that neither acts nor stands in a loop of its own."""
    scope = scope_of(code)
    if not isinstance(scope, ast.FunctionDef) or not code.co_flags & inspect.CO_OPTIMIZED:
        return False
    if not _LOOKS.isdisjoint(code.co_names) or loops_at(scope, line):
        return False
    methods = (node.func for node in nodes_in(scope) if isinstance(node, ast.Call))
    return not any(isinstance(method, ast.Attribute) and method.attr in acts for method in methods)


def _is_kept(value: Any) -> bool:
    if isinstance(value, tuple | list | dict) and len(value) <= MOST:
        return all(map(_is_small, value.values() if isinstance(value, dict) else value))
    return _is_small(value)


def _is_small(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.layout == torch.strided and value.nbytes <= SMALL
    return value is None or isinstance(value, bool | int | float | str | nn.Module | FunctionType)
