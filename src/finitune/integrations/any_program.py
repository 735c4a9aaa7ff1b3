"""Any program that trains with PyTorch: everything that the process trains is watched from the import of torch on.

Used by `finitune run`. What is trained is found by its backwards and its optimizers, of whatever class.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from torch import nn

from finitune.gym.inject import inject
from finitune.injection import Injection
from finitune.monitor.crash import report_crashes
from finitune.monitor.optimizers import Watched
from finitune.monitor.origin.live_watch import compiles
from finitune.monitor.process import Monitor

AFTER = ("torch",)


def attach() -> None:
    """Watch this process; the environment says where, how and how much."""
    monitor = _Injecting(
        run_dir=os.environ["FINITUNE_RUN_DIR"],
        mode=_from_environment("FINITUNE_MODE", "guard"),
        signals=_from_environment("FINITUNE_SIGNALS", "economy"),
        everything=True,
        skip_spikes=bool(_from_environment("FINITUNE_SKIP_SPIKES", "")),
        watch_step=int(_from_environment("FINITUNE_WATCH_STEP", "") or 0) or None,
    )
    if os.environ.get("FINITUNE_RERUN"):
        monitor.hold_back_saves()
    report_crashes(monitor)


def _from_environment(name: str, default: str) -> Any:
    return os.environ.get(name, default)


class _Injecting(Monitor):
    """Plants the faults of `--inject`, each as soon as there is a model that has its module; leaves a mark for the
    launcher where compiled code has hidden the training.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._faults: list[str] = json.loads(os.environ.get("FINITUNE_INJECT", "[]"))

    def close(self) -> None:
        super().close()
        stepped = any(getattr(one.optimizer(), "state", None) for one in self._optimizers)
        marks = os.environ.get("FINITUNE_MARKS")
        if marks and stepped and not self.step and compiles():
            with contextlib.suppress(OSError):  # the launcher has ended
                (Path(marks) / "compiled").touch()

    def add(self, optimizer: Any, model: nn.Module | None = None) -> Watched:
        watched = super().add(optimizer, model)
        self._plant()
        return watched

    def training_begins(self) -> None:
        self.run_dir = os.environ["FINITUNE_RUN_DIR"]  # a fork may have been given its own
        super().training_begins()
        self._plant()
        if self._faults and self.models:
            known = ", ".join(type(model).__name__ for model in self.models)
            print(f"finitune: --inject {self._faults[0]}: no such module in {known}", file=sys.stderr)
            raise SystemExit(2)

    def _plant(self) -> None:
        for fault in list(self._faults):
            planned = Injection.parse(fault)
            model = next((m for m in self.models if planned.module in dict(m.named_modules())), None)
            if model is not None:
                self._faults.remove(fault)
                inject(self, planned, model, model.get_submodule(planned.module))
