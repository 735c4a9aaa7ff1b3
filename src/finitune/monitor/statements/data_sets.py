"""A bad input followed into the data set and the `collate_fn` that it came from.

Which samples a DataLoader has fetched last is known. They are read again: what the user's `__getitem__` and
`collate_fn` compute is computed from their source, so that none of the user's code runs and nothing is drawn.
"""

from __future__ import annotations

import ast
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import default_collate

from finitune.finding import Origin
from finitune.monitor.origin.batch_places import bad_rows
from finitune.monitor.origin.operator_watch import LIFTED, OperatorWatch
from finitune.monitor.probes.fetches import Fetch, fetches, is_read
from finitune.monitor.probes.finite import is_finite, places
from finitune.monitor.probes.quiet import without_warnings
from finitune.monitor.statements.bad_statement import made_in_frames
from finitune.monitor.statements.plain_functions import NOT_COMPUTED, Evaluation
from finitune.monitor.statements.plain_statements import StateSpoilt
from finitune.monitor.user_code import numpy_arithmetic
from finitune.monitor.user_code.arithmetic import MISSING
from finitune.monitor.user_code.frame_variables import variables_of
from finitune.monitor.user_code.source_line import user_frames
from finitune.monitor.user_code.source_tree import nodes_in, scope_of
from finitune.monitor.user_code.variables import function_behind, value_of

MOST_SAMPLES = 4096
"""Read again of one fetch."""
SECONDS = 10.0
"""For all fetches together; what is left is not read."""


def made_by_data_set(known: Origin) -> Origin:
    """The operator that makes a sample of a data set bad, or the batch that is made of it, where an input is `known` to
    be bad; where the samples are bad as they are, `known` with their numbers. `known` itself where none is.
    """
    until = time.monotonic() + SECONDS
    for fetch in fetches():
        again = _Again(fetch, until)
        if again.is_bad() and (origin := again.origin(known)) is not None:
            return origin
    return known


class _Again:
    """One fetch, read again: each sample until one is bad, then the batch."""

    def __init__(self, fetch: Fetch, until: float) -> None:
        self.fetch = fetch
        self._until = until
        self._evaluation = _Watched()
        self._batch: Any = MISSING
        self._bad: list[Any] = []

    def is_bad(self) -> bool:
        """Whether something bad comes out; of what cannot be computed to its end, whether something bad was made."""
        samples: list[Any] = []
        for index in self.fetch.indices[:MOST_SAMPLES]:
            if time.monotonic() > self._until:
                return False
            samples.append(self._watched(self._sample, index))
            if self._comes_out_bad(samples[-1]):
                self._bad = [index]
                return True
        collate = self.fetch.collate
        function, _ = function_behind(collate)  # which may be an object's, as of those that trainers are given
        if function is None or function is default_collate:
            return False
        self._batch = self._watched(self._computed, collate, samples)
        return self._comes_out_bad(self._batch)

    def _comes_out_bad(self, value: Any) -> bool:
        return self._evaluation.has_made_bad if value is MISSING else _is_any_bad(value)

    def _watched(self, read: Callable[..., Any], *args: Any) -> Any:
        self._evaluation = _Watched()
        with without_warnings(), torch.no_grad(), self._evaluation.watch:
            return read(*args)

    def _computed(self, function: Any, *args: Any) -> Any:
        try:
            return self._evaluation.result(function, *args)
        except NOT_COMPUTED:
            return MISSING

    def _sample(self, index: Any) -> Any:
        data_set = self.fetch.data_set
        if is_read(data_set):
            return data_set[index]
        read = inspect.getattr_static(type(data_set), "__getitem__", None)
        if not isinstance(read, FunctionType) or hasattr(type(data_set), "__getitems__"):
            return MISSING
        return self._computed(MethodType(read, data_set), index)

    def origin(self, known: Origin) -> Origin | None:
        made = self._made(known)
        if made is None and not self._bad:
            return None
        at = self._bad or self._of_rows(known)
        kind = type(self.fetch.data_set).__name__
        where = f"sample{'s' if len(at) > 1 else ''} {', '.join(map(str, at[:8]))} of {kind}" if at else ""
        values = ", ".join(each for each in (known.values, where) if each)
        if made is not None:
            return replace(made, values=values)
        return replace(
            self._at_rest(known) or known, rows=known.rows, values=values, tensor=known.tensor, shape=known.shape
        )

    def _made(self, known: Origin) -> Origin | None:
        """By what was computed here, where that is more than reading what is bad as it lies there."""
        made = self._evaluation.bad_number or self._evaluation.watch.found(bad_loss=True)
        if made is None or made.op == LIFTED:
            return None
        line = made.line or self._evaluation.line
        return replace(known, op=made.op, divisor=made.divisor, peak=made.peak, line=line)

    def _of_rows(self, known: Origin) -> list[Any]:
        """The samples of the batch's bad rows."""
        leaf = next(_bad_tensors(self._batch), None) if self._batch is not MISSING else None
        rows = known.rows if leaf is None or not leaf.dim() or len(leaf) != len(self.fetch.indices) else bad_rows(leaf)
        return [self.fetch.indices[n] for n in rows or () if n < len(self.fetch.indices)]

    def _at_rest(self, known: Origin) -> Origin | None:
        """The statement that has made what holds the samples: in a running frame, or as the data set was made."""
        held = [*getattr(self.fetch.data_set, "tensors", ()), *getattr(self.fetch.data_set, "__dict__", {}).values()]
        bad = [each for each in held if isinstance(each, Tensor) and not is_finite(each)]
        if (found := made_in_frames(bad)) is not None:
            return found
        return self._made(known) if self._watched(self._makes_bad) else None

    def _makes_bad(self) -> bool:
        """Whether an attribute of the data set that is bad becomes so in its `__init__`."""
        data_set = self.fetch.data_set
        made = inspect.getattr_static(type(data_set), "__init__", None)
        given = _arguments_of(type(data_set), self._evaluation)
        if not isinstance(made, FunctionType) or given is None:
            return False
        try:
            self._evaluation.result(MethodType(made, data_set), *given[0], **given[1])
        except StateSpoilt:
            return True
        except NOT_COMPUTED:
            pass
        return False


def _arguments_of(kind: type, evaluation: Evaluation) -> tuple[list[Any], dict[str, Any]] | None:
    """What the only call of a class in the running frames gives to it, as far as that is known; None without one."""
    for frame in user_frames():
        scope, values = scope_of(frame.f_code), variables_of(frame)
        nodes = [] if scope is None else nodes_in(scope)
        calls = [node for node in nodes if isinstance(node, ast.Call) and value_of(node.func, values) is kind]
        if len(calls) == 1:
            (call,) = calls
            args = [_known(each, values, evaluation) for each in call.args]
            return args, {each.arg: _known(each.value, values, evaluation) for each in call.keywords if each.arg}
    return None


def _known(node: ast.expr, values: Mapping[str, Any], evaluation: Evaluation) -> Any:
    found = value_of(node, values, MISSING)
    with suppress(*NOT_COMPUTED):
        return evaluation.value(node, values) if found is MISSING else found
    return MISSING


class _Watched(Evaluation):
    """Tells which operator of torch or operation of numpy makes something bad."""

    def __init__(self) -> None:
        self.watch = OperatorWatch.of_arithmetic()
        super().__init__(lambda: self.has_made_bad)
        self.placed_by(self.watch)

    @property
    def has_made_bad(self) -> bool:
        return self.bad_number is not None or self.watch.found(bad_loss=True) is not None


def _bad_tensors(value: Any) -> Iterator[Tensor]:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, Tensor) and not is_finite(leaf):
            found = places(leaf, limit=0)
            if found.nan or found.inf:
                yield leaf


def _is_any_bad(sample: Any) -> bool:
    """NaN or +inf; a -inf alone may be a mask."""
    with _disable_current_modes():
        if next(_bad_tensors(sample), None) is not None:
            return True
    return any(numpy_arithmetic.is_bad(leaf) for leaf in pytree.tree_leaves(sample) if leaf is not MISSING)
