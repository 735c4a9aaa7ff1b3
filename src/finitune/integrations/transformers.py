"""HF Trainer and TRL: `trainer.add_callback(TrainerCallback())`; under `finitune run` every Trainer has it already.

The callback watches the trainer's model and optimizer and keeps the log honest: where the trainer prints a loss of
0.0 or a plausible mean for a step whose loss was NaN, or DeepSpeed's grad_norm of 1.414 for one that was not finite,
finitune says so beside that line. What `report_to` names gets the true numbers, under `finitune/...`, and what
finitune said.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import transformers
from transformers.integrations import integration_utils
from transformers.trainer_callback import CallbackHandler

from finitune.integrations.trackers import TrackerFeed
from finitune.monitor.probes.gc_objects import living
from finitune.monitor.process import Monitor, active
from finitune.monitor.run import Mode
from finitune.monitor.watch import watch
from finitune.signals import Level

AFTER = ("transformers.trainer",)


class TrainerCallback(transformers.TrainerCallback):
    """Watches one training; `run_dir` is by default `<output_dir>/finitune`."""

    def __init__(
        self, run_dir: str | Path | None = None, mode: Mode = "guard", signals: Level = "economy"
    ) -> None:  # fmt: skip
        self.run_dir = run_dir
        self.mode: Mode = mode
        self.signals: Level = signals
        self.monitor: Monitor | None = None
        self._own = False
        self._logged_until = 0
        self._reporters: list[Any] = []
        self._feed = TrackerFeed()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, optimizer = kwargs.get("model"), kwargs.get("optimizer")
        if model is not None and optimizer is not None:
            if os.environ.get("FINITUNE_RERUN"):
                args.save_strategy = "no"  # this run is only there to be watched; saving would remove older checkpoints
            run_dir = self.run_dir or os.environ.get("FINITUNE_RUN_DIR") or Path(args.output_dir) / "finitune"
            try:
                self._own = active() is None
                monitor = watch(model, optimizer, run_dir=run_dir, mode=self.mode, signals=self.signals)
                if monitor.logged_by not in (None, self):
                    return  # under `finitune run` this trainer has another of us
                monitor.logged_by = self
                self.monitor = monitor
                if monitor.step < state.global_step:
                    monitor.step = state.global_step  # a resumed training goes on counting
                self._logged_until = self._feed.reported_until = state.global_step
                self._reporters = _reporters_beside(self)
            except Exception as error:  # the training goes on, watched or not
                print(f"finitune: this training is not watched ({type(error).__name__}: {error})", file=sys.stderr)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if self.monitor is None or not logs:
            return
        try:
            if "loss" in logs:
                since, self._logged_until = self._logged_until, self.monitor.step
                for name in ("loss", "grad_norm"):
                    self.monitor.check_printed(logs.get(name), since=since, name=name)
            if self._reporters:
                self._report(args, state, control, **kwargs)
        except Exception as error:
            self.monitor.broken(error)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        monitor, self.monitor = self.monitor, None
        if monitor is not None:
            monitor.logged_by = None  # another trainer of this process may follow
            if self._own:
                monitor.close()

    def _report(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.monitor is not None
        numbers, texts = self._feed.numbers(self.monitor), self._feed.texts(self.monitor)
        if not numbers and not texts:
            return
        for reporter in self._reporters:
            logs: dict[str, Any] = {**numbers, "finitune/alerts": float(self._feed.alerts)}
            if texts and type(reporter).__name__ in TEXT:
                logs["finitune/alert"] = "\n".join(texts)
            reporter.on_log(args, state, control, logs=logs, **kwargs)


TEXT = ("TensorBoardCallback", "TrackioCallback", "WandbCallback")
"""These take a text beside the numbers; the others get how many alerts there were."""


def _reporters_beside(callback: TrainerCallback) -> list[Any]:
    """The trackers of the trainer that has this callback; a callback does not know who calls it."""
    kinds = tuple(integration_utils.INTEGRATION_TO_CALLBACK.values())
    ours = [h for h in living() if type(h) is CallbackHandler and any(c is callback for c in h.callbacks)]
    return [other for handler in ours for other in handler.callbacks if isinstance(other, kinds)]


def attach() -> None:
    """Give every Trainer of this process the callback."""
    from transformers import trainer

    mode: Any = os.environ.get("FINITUNE_MODE", "guard")

    class Attached(TrainerCallback):
        def __init__(self) -> None:
            super().__init__(mode=mode)

    trainer.DEFAULT_CALLBACKS.append(Attached)  # pyright: ignore[reportArgumentType]
