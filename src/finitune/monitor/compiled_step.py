"""The step of an optimizer within a compiled function, which is not seen and cannot be discarded there.

Where the gradients of a backward are bad, compiled functions run eagerly until the step has ended: then it is seen, and
the gate judges it as that of any other program. The same is true of a step that is watched operator by operator.
"""

from __future__ import annotations

from typing import Any

import torch

from finitune.monitor.capture.step import Capture
from finitune.monitor.origin.live_watch import compiles, within_compiled
from finitune.monitor.probes.measurement import Reading

Judged = tuple[Capture, Reading]
"""What a backward has left."""


class CompiledStep:
    """The one that is awaited after a backward of which no step was seen before."""

    def __init__(self) -> None:
        self._judged: Judged | None = None
        self._stance: Any = None
        self._is_by_hand = False
        """No step came where one was awaited: the loop updates by itself."""

    def awaits(self, judged: Judged) -> bool:
        """Whether the optimizer may step within a compiled function; compiled functions run eagerly then, from now on,
        so that its step is seen.
        """
        if self._is_by_hand or not compiles() or within_compiled():  # which has chosen how its functions run
            return False
        self._judged = judged
        if self._stance is None:
            self._stance = torch.compiler.set_stance("force_eager")
        return True

    def seen(self) -> bool:
        """A step has ended: whether it was awaited. Functions run compiled again."""
        return self._over() is not None

    def missed(self) -> Judged | None:
        """Another backward begins: what the one before had left, where no step came that was awaited."""
        judged = self._over()
        self._is_by_hand = self._is_by_hand or judged is not None
        return judged

    def _over(self) -> Judged | None:
        judged, self._judged = self._judged, None
        stance, self._stance = self._stance, None
        if stance is not None:
            stance.__exit__(None, None, None)
        return judged
