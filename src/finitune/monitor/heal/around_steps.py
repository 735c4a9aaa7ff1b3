"""What is done just before and just after each step of an optimizer, until it is `removed`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class AroundSteps(ABC):
    def __init__(self, optimizer: Any) -> None:
        self._hooks = (
            optimizer.register_step_pre_hook(lambda *_: self._again()),
            optimizer.register_step_post_hook(lambda *_: self.end()),
        )

    def removed(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self.end()

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def end(self) -> None:
        """Takes back what `begin` did; does nothing where it has not been called since."""

    def _again(self) -> None:
        self.end()  # of a step that raised
        self.begin()
