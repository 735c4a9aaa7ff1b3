"""HF Trainer and TRL: `trainer.add_callback(TrainerCallback())`; under `finitune run` every Trainer has it already.

The callback watches the trainer's model and optimizer and keeps the log honest: where the trainer prints a loss of
0.0 or a plausible mean for a step whose loss was NaN, or DeepSpeed's grad_norm of 1.414 for one that was not finite,
finitune says so beside that line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import transformers

from finitune.monitor import Mode, Monitor, watch


class TrainerCallback(transformers.TrainerCallback):
    """Watches one training; `run_dir` is by default `<output_dir>/finitune`."""

    def __init__(self, run_dir: str | Path | None = None, mode: Mode = "guard") -> None:
        self.run_dir = run_dir
        self.mode: Mode = mode
        self.monitor: Monitor | None = None
        self._logged_until = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, optimizer = kwargs.get("model"), kwargs.get("optimizer")
        if model is not None and optimizer is not None:
            run_dir = self.run_dir or os.environ.get("FINITUNE_RUN_DIR") or Path(args.output_dir) / "finitune"
            try:
                self.monitor = watch(model, optimizer, run_dir=run_dir, mode=self.mode)
                self.monitor.step = state.global_step  # a resumed training goes on counting
            except Exception as error:  # the training goes on, watched or not
                print(f"finitune: this training is not watched ({type(error).__name__}: {error})", file=sys.stderr)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if self.monitor is None or not logs or "loss" not in logs:
            return
        since, self._logged_until = self._logged_until, self.monitor.step
        try:
            for name in ("loss", "grad_norm"):
                self.monitor.check_printed(logs.get(name), since=since, name=name)
        except Exception as error:
            self.monitor.broken(error)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.monitor is not None:
            self.monitor.close()


def attach() -> None:
    """Give every Trainer of this process the callback."""
    from transformers import trainer

    mode: Any = os.environ.get("FINITUNE_MODE", "guard")

    class Attached(TrainerCallback):
        def __init__(self) -> None:
            super().__init__(mode=mode)

    trainer.DEFAULT_CALLBACKS.append(Attached)  # pyright: ignore[reportArgumentType]
