"""What the monitor says on stderr: only when something happened, one line or block, rarer and rarer when it repeats."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finitune.crashes import in_words
from finitune.finding import Origin
from finitune.launch import UNSEEN, stderr_now

ALERTS = 100
"""The newest are kept for a tracker that asks less often."""


class Speech:
    """One per process. `rank` is named in each message where there are several."""

    def __init__(self, *, rank: int = 0, world: int = 1) -> None:
        self.alerts: deque[tuple[int, str]] = deque(maxlen=ALERTS)
        """What was said, as (number from 1, text): trackers pass it on."""
        self.rank = rank
        self.world = world
        self._times: Counter[str] = Counter()

    def say(self, *lines: str, of_all_ranks: bool = False) -> None:
        """Say these lines, the first with `finitune:` before it, and the rank where what is said is about one."""
        text = "\n".join(lines)
        self.alerts.append((self.alerts[-1][0] + 1 if self.alerts else 1, text))
        who = f"finitune: rank {self.rank}: " if self.world > 1 and not of_all_ranks else "finitune: "
        try:
            print(f"{_new_line()}{who}{text}", file=sys.stderr, flush=True)
        except (OSError, ValueError):  # stderr is closed
            return

    def say_at_the_end(self, text: str) -> None:
        """Say how the run ended; where stderr is another than the launcher's, as in a notebook, it says it too."""
        self.say(text, of_all_ranks=True)
        marks = os.environ.get("FINITUNE_MARKS")
        if marks and stderr_now() != os.environ.get("FINITUNE_STDERR"):
            with contextlib.suppress(OSError):
                (Path(marks) / UNSEEN).write_text(f"finitune: {text}", encoding="utf-8")

    def knows(self, key: str) -> bool:
        """Was anything said under this key?"""
        return bool(self._times[key])

    def once(self, key: str, text: str) -> None:
        if not self._times[key]:
            self.say(text)
        self._times[key] += 1

    def rarer(self, key: str, text: str) -> None:
        """The 1st, 2nd, 4th, 8th... time only; from the second on with how many times it was."""
        self._times[key] += 1
        count = self._times[key]
        if count & (count - 1) == 0:
            self.say(text if count == 1 else f"{text} (the {count}th time)" if count > 3 else f"{text} (the 2nd time)")


def _new_line() -> str:
    """A line break where a progress bar stands on the present line."""
    bars = getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", None)
    return "\n" if bars and len(bars) else ""


def plainly(origin: Origin) -> str:
    """A line about the origin where nothing but torch may be there to write it."""
    where = "the loss" if origin.module is None else origin.module or "the model"
    what = f"{where}, {origin.op}" if origin.op != origin.phase else origin.tensor
    text = f"{what} ({origin.phase}), {origin.dtype}: {origin.values}"
    return f"{text}; {origin.line}" if origin.line else text


def lines_of_crash(
    step: int, text: str, frames: Sequence[str], batch: Sequence[dict[str, Any]], seen: Origin | None
) -> list[str]:
    """What is said of a program that ended in an exception; `frames` are its own, innermost last."""
    return [
        f"step {step}: the program ended in {text}",
        *(f"  raised at        {frame}" for frame in frames[-1:]),
        *(f"  variable         {fact}" for fact in in_words([one for one in batch if "variable" in one])),
        *(f"  batch            {fact}" for fact in in_words([one for one in batch if "variable" not in one])),
        *([f"  first bad value  {plainly(seen)}"] if seen is not None else []),
    ]
