"""Modules whose forward runs within a context from now on; the change is taken back by removing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

from finitune.monitor.heal.cure import Undo

Context = Callable[[], AbstractContextManager[Any]]


def run_within(modules: Iterable[nn.Module], context: Context) -> Undo:
    """Every call of these modules runs within a new `context()`."""
    undone = [_within(module, context) for module in modules]

    def undo() -> None:
        for one in reversed(undone):
            one()

    return undo


@contextmanager
def for_one_run(modules: Sequence[nn.Module], context: Context) -> Iterator[None]:
    """The same for the time of a block."""
    undo = run_within(modules, context)
    try:
        yield
    finally:
        undo()


def _within(module: nn.Module, context: Context) -> Undo:
    own, replaced = module.forward, "forward" in vars(module)

    def forward(*args: Any, **kwargs: Any) -> Any:
        with context():
            return own(*args, **kwargs)

    module.forward = forward

    def undo() -> None:
        if vars(module).get("forward") is not forward:
            return  # the program has replaced or removed it since
        if replaced:
            module.forward = own
        else:
            del module.forward

    return undo
