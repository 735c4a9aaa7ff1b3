"""Lightning: `Trainer(callbacks=[LightningCallback()])`; under `finitune run` every Trainer has it already.

Works with both packages, `lightning` and `pytorch_lightning`: the callback derives from the Callback class of each
that is loaded. It watches the module and its optimizer, goes on counting after a resume, and passes what the guard
measured to the trainer's own loggers under `finitune/...`.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

from finitune.integrations.trackers import TrackerFeed
from finitune.monitor.process import Monitor, active
from finitune.monitor.run import Mode
from finitune.monitor.watch import watch

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
AFTER = (
    "lightning.pytorch.trainer.connectors.callback_connector",
    "pytorch_lightning.trainer.connectors.callback_connector",
)


def _loaded() -> tuple[Any, ...]:
    """The Callback class of every Lightning that the program has imported."""
    return tuple(sys.modules[name].Callback for name in PACKAGES if hasattr(sys.modules.get(name), "Callback"))


class _Watching:
    """Watches one fit; `run_dir` is by default `<default_root_dir>/finitune`."""

    def __init__(self, run_dir: str | Path | None = None, mode: Mode = "guard") -> None:
        super().__init__()
        self.run_dir = run_dir
        self.mode: Mode = mode
        self.monitor: Monitor | None = None
        self._own = False
        self._feed = TrackerFeed()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        run_dir = self.run_dir or os.environ.get("FINITUNE_RUN_DIR") or Path(trainer.default_root_dir) / "finitune"
        try:
            self._own = active() is None
            for optimizer in trainer.optimizers:
                self.monitor = watch(pl_module, optimizer, run_dir=run_dir, mode=self.mode)
            if self.monitor is not None and self.monitor.step < trainer.global_step:
                self.monitor.step = trainer.global_step  # a resumed training goes on counting
                self._feed.reported_until = trainer.global_step
        except Exception as error:  # the training goes on, watched or not
            print(f"finitune: this training is not watched ({type(error).__name__}: {error})", file=sys.stderr)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if self.monitor is None or self.monitor.step % trainer.log_every_n_steps or not trainer.loggers:
            return
        try:
            self._log(trainer)
        except Exception as error:
            self.monitor.broken(error)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        monitor, self.monitor = self.monitor, None
        if monitor is None:
            return
        try:
            if trainer.loggers:
                self._log(trainer, monitor)
        except Exception as error:
            monitor.broken(error)
        if self._own:
            monitor.close()

    def _log(self, trainer: Any, monitor: Monitor | None = None) -> None:
        monitor = monitor or self.monitor
        assert monitor is not None
        numbers, texts = self._feed.numbers(monitor), self._feed.texts(monitor)
        for logger in trainer.loggers:
            if numbers or texts:
                logger.log_metrics({**numbers, "finitune/alerts": float(self._feed.alerts)}, step=monitor.step)
            if hasattr(logger.experiment, "add_text"):  # TensorBoard; elsewhere the number of alerts has to do
                for text in texts:
                    logger.experiment.add_text("finitune/alert", text, monitor.step)


@functools.cache
def _class(bases: tuple[Any, ...]) -> type:
    return type("LightningCallback", (_Watching, *bases), {"__doc__": _Watching.__doc__})


def LightningCallback(run_dir: str | Path | None = None, mode: Mode = "guard") -> Any:  # noqa: N802
    """A callback for the Trainer of whichever Lightning is in use; `run_dir`: by default `<default_root_dir>/finitune`.

    Raises ImportError where neither package is imported yet.
    """
    bases = _loaded()
    if not bases:
        raise ImportError("LightningCallback needs lightning or pytorch_lightning; import it before this call")
    return _class(bases)(run_dir, mode)


def attach() -> None:
    """Give every Trainer of this process the callback."""
    mode: Any = os.environ.get("FINITUNE_MODE", "guard")
    for name in PACKAGES:
        connector = sys.modules.get(f"{name}.trainer.connectors.callback_connector")
        if connector is not None and not hasattr(connector._CallbackConnector, "_finitune"):
            connector._CallbackConnector._finitune = True
            _extend(connector._CallbackConnector, name, mode)


def _extend(connector: Any, package: str, mode: Mode) -> None:
    configure = connector.on_trainer_init

    @functools.wraps(configure)
    def on_trainer_init(self: Any, *args: Any, **kwargs: Any) -> None:
        configure(self, *args, **kwargs)
        callbacks = self.trainer.callbacks
        try:
            if not any(isinstance(callback, _Watching) for callback in callbacks):
                base = sys.modules[package].Callback
                callbacks.insert(0, _class((base,))(None, mode))
        except Exception as error:
            print(f"finitune: this trainer is not followed ({type(error).__name__}: {error})", file=sys.stderr)

    connector.on_trainer_init = on_trainer_init
