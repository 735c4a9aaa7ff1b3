"""What the function that torch.func has made, and that has just computed its gradients, was given."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Given = tuple[tuple[Any, ...], dict[str, Any]]


class _Here(threading.local):
    given: Given | None = None


_here = _Here()


@contextmanager
def called_with(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """While what it has computed is looked at. By reference: nothing is kept afterwards."""
    _here.given = args, kwargs
    try:
        yield
    finally:
        _here.given = None


def given() -> Given | None:
    """Its arguments; None outside of such a call, or within a batch, in which they have no values of their own."""
    return _here.given
