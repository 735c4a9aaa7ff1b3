"""What `foresee` finds, without what it says that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from finitune.finding import Finding


def findings(foresee: Callable[..., Iterator[Any]]) -> Callable[..., list[Finding]]:
    """`foresee` with the same parameters; its findings alone, as a list."""
    return lambda *facts, **more: [one for one in foresee(*facts, **more) if isinstance(one, Finding)]
