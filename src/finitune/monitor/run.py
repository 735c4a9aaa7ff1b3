"""What all parts of a monitor share: where the recording goes, how much is measured, and what was measured so far."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from finitune.monitor.clean_saves import CleanSaves
from finitune.monitor.probes.modules import Modules
from finitune.monitor.speech import Speech
from finitune.monitor.user_code.source_line import frames_of
from finitune.recording import Recorder
from finitune.series import Series, Signals
from finitune.signals import SIGNALS, Level

Mode = Literal["observe", "guard", "heal"]
MOST_VALUES = 2**15
"""Of one signal that are kept in memory, 0.5 MB; the recording has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The process that is watched, and where its recording goes."""

    recorder: Recorder
    mode: Mode
    level: Level
    speech: Speech
    modules: Modules
    saves: CleanSaves = field(default_factory=CleanSaves)
    trained: dict[str, int] = field(default_factory=dict[str, int])
    """Of each optimizer the most tensors that had a gradient other than zero in a step."""
    signals: dict[str, Series] = field(default_factory=lambda: {name: Series(most=MOST_VALUES) for name in SIGNALS})

    beside: dict[str, dict[str, Series]] = field(default_factory=dict[str, dict[str, Series]])
    """Of optimizers that step on a loss of their own where another has stepped before: what is their own."""

    def signals_of(self, optimizer: str, step: int) -> Signals:
        """Where that optimizer has stepped beside another one in this step, with those that are its own."""
        own = self.beside.get(optimizer)
        return {**self.signals, **own} if own and own["loss"].last_step == step else self.signals

    @property
    def run_dir(self) -> Path:
        return self.recorder.directory

    @property
    def guards(self) -> bool:
        """Bad updates are discarded: in `heal` as in `guard`."""
        return self.mode != "observe"

    @property
    def world(self) -> int:
        return self.recorder.world

    def forget(self) -> None:
        """What was measured so far was of no step."""
        self.signals.update({name: Series(most=MOST_VALUES) for name in self.signals})
        self.trained.clear()
        self.beside.clear()

    def broken(self, step: int, error: BaseException) -> None:
        """A fault of finitune itself: said once, recorded with its frames, and training goes on."""
        text = f"{type(error).__name__}: {str(error)[:300]}"
        if self.speech.knows(text):
            return
        with contextlib.suppress(Exception):
            self.recorder.event("broken", step=step, text=text, frames=frames_of(error))
        self.speech.once(text, f"step {step}: finitune itself failed here, and the training goes on ({text})")
