"""When a step is watched live: after a bad one that could not be located, and where `--watch-step N` asks for it."""

from __future__ import annotations

from collections.abc import Callable

from finitune.monitor.capture.step import Call
from finitune.monitor.origin.live_watch import LiveWatch, within_compiled
from finitune.monitor.probes.modules import Modules


class LiveStep:
    """At most one live watch at a time; `calls` gives the model calls of the step that runs. `asked` is the step that
    `--watch-step` names, None where there is none.
    """

    def __init__(
        self, modules: Modules, calls: Callable[[], list[Call]], say: Callable[[str], None], asked: int | None = None
    ) -> None:
        self.asked = asked
        self._modules = modules
        self._calls = calls
        self._say = say
        self._watch: LiveWatch | None = None
        self._idle: LiveWatch | None = None
        """One that was over within a compiled function, where it could not be ended."""
        self._tensors: dict[int, str] = {}
        self._places: dict[int, str] = {}

    @property
    def running(self) -> bool:
        return self._watch is not None

    def step_follows(self, step: int) -> None:
        """`step` is about to begin: watched where it was asked for."""
        if self.asked == step:
            self.begin()

    def begin(self) -> None:
        """What runs from now on is seen, up to the next gate."""
        self._settle()
        if self._watch is not None:
            return
        self._tensors, self._places = {}, {}
        self._name()
        watch = LiveWatch(self._tensors, self._places, self._calls)
        why_not = watch.begin()
        if why_not is None:
            self._watch = watch
        else:
            self._say(f"the next step cannot be watched operator by operator: {why_not}")

    def training_begins(self) -> None:
        """An optimizer was made: what ran before it, under watch, was no part of the first step."""
        if self._watch is not None:
            self._name()
            self._watch.watch.forgive()

    def now(self) -> LiveWatch | None:
        """The watch that runs; one that is over ends here at the latest."""
        self._settle()
        return self._watch

    def taken(self) -> LiveWatch | None:
        """The watch that ran, ended."""
        live, self._watch = self._watch, None
        self._settle()
        if live is not None:
            live.idle()
            self._idle = live
            self._settle()
            if (error := live.watch.failed) is not None:
                self._say(f"the step was watched only in part: {type(error).__name__}: {str(error)[:200]}")
        return live

    def _settle(self) -> None:
        """End a watch that is over, where that can be done."""
        if self._idle is not None and not within_compiled():
            self._idle.end()
            self._idle = None

    def _name(self) -> None:
        for root in self._modules.roots():
            self._tensors.update({id(t): self._modules.name(t) for t in root.parameters()})
        self._places.update({id(module): name for name, module in self._modules.module_names()})
