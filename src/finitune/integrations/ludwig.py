"""Ludwig: `LudwigModel(config, callbacks=[LudwigCallback()])`; under `finitune run` every trainer has it already.

Ludwig looks at its weights once per evaluation; the callback watches every step. It watches the language model inside
Ludwig's own, whose call has the ids and the mask as they were padded. Ludwig's table of means leaves NaN out: there
finitune says beside it which step's loss was NaN.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

from ludwig.callbacks import Callback  # pyright: ignore[reportMissingImports]
from torch import nn

from finitune.monitor.probes.optimizers import parameters_of
from finitune.monitor.process import Monitor, active
from finitune.monitor.run import Mode
from finitune.monitor.watch import watch

AFTER = ("ludwig.trainers.trainer",)


class LudwigCallback(Callback):  # pyright: ignore[reportUntypedBaseClass]
    """Watches one training; `run_dir` is by default `finitune` beside the model that Ludwig saves."""

    def __init__(self, run_dir: str | Path | None = None, mode: Mode = "guard") -> None:
        self.run_dir = run_dir
        self.mode: Mode = mode
        self.monitor: Monitor | None = None
        self._own = False
        self._shown_until = 0

    def on_trainer_train_setup(self, trainer: Any, save_path: str, is_coordinator: bool) -> None:  # noqa: FBT001
        run_dir = self.run_dir or os.environ.get("FINITUNE_RUN_DIR") or Path(save_path).parent / "finitune"
        try:
            model = _what_is_called(trainer)
            self._own = active() is None
            self.monitor = watch(model, trainer.optimizer, run_dir=run_dir, mode=self.mode)
        except Exception as error:  # the training goes on, watched or not
            print(f"finitune: this training is not watched ({type(error).__name__}: {error})", file=sys.stderr)

    def on_eval_end(self, trainer: Any, progress_tracker: Any, save_path: str) -> None:
        """The table of this evaluation has been shown, with the mean loss of the steps since the one before."""
        if self.monitor is None:
            return
        since, self._shown_until = self._shown_until, self.monitor.step
        try:
            for metrics in progress_tracker.train_metrics.values():
                if metrics.get("loss"):
                    self.monitor.check_printed(float(metrics["loss"][-1][-1]), since=since)
                    return
        except Exception as error:
            self.monitor.broken(error)

    def on_trainer_train_teardown(
        self,
        trainer: Any,
        progress_tracker: Any,
        save_path: str,
        is_coordinator: bool,  # noqa: FBT001
    ) -> None:
        monitor, self.monitor = self.monitor, None
        if monitor is not None and self._own:
            monitor.close()


def _what_is_called(trainer: Any) -> nn.Module:
    """The language model that Ludwig's model calls with ids and mask, where it holds all that is trained."""
    outer = trainer.dist_model
    outer = outer.module if isinstance(outer, nn.parallel.DistributedDataParallel) else outer
    inner = getattr(outer, "model", None)
    if not isinstance(inner, nn.Module):
        return outer
    held = {id(p) for p in inner.parameters()}
    return inner if all(id(p) in held for p in parameters_of(trainer.optimizer) if p.requires_grad) else outer


def attach() -> None:
    """Give every trainer of this process the callback."""
    from ludwig.trainers.trainer import Trainer  # pyright: ignore[reportMissingImports]

    mode: Any = os.environ.get("FINITUNE_MODE", "guard")
    make = Trainer.__init__

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if not any(isinstance(callback, LudwigCallback) for callback in self.callbacks):
            self.callbacks = [*self.callbacks, LudwigCallback(mode=mode)]

    Trainer.__init__ = made
