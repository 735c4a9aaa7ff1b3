"""A forward that is replaced from now on; the change is taken back by removing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from finitune.monitor.heal.undo import Undo, of_all

Forward = Callable[..., Any]
Context = Callable[[], AbstractContextManager[Any]]


def run_within(modules: Iterable[nn.Module], context: Context) -> Undo:
    """Every call of these modules runs within a new `context()`."""
    return of_all(_within(module, context) for module in modules)


def _within(module: nn.Module, context: Context) -> Undo:
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with context():
            return own(*args, **kwargs)

    return replaced(module, forward)


def replaced(module: nn.Module, forward: Forward) -> Undo:
    """Let the module run `forward`; undone where the program has not replaced it since."""
    own, of_its_own = module.forward, "forward" in vars(module)
    module.forward = forward

    def undo() -> None:
        if vars(module).get("forward") is not forward:
            return
        if of_its_own:
            module.forward = own
        else:
            del module.forward

    return undo
