"""What is computed again warns of nothing: the program has had its warnings, or has gone another way."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_warnings() -> Iterator[None]:
    """The filters stay as they are: where they change, Python shows once more what the program has been warned of. Only
    those that raise are set aside.
    """
    if any(action == "error" for action, *_ in warnings.filters):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
        return
    shown, warnings.showwarning = warnings.showwarning, lambda *_, **__: None
    try:
        yield
    finally:
        warnings.showwarning = shown
