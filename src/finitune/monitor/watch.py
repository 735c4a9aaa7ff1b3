"""`finitune.watch`: one line in a training program of any kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from finitune.monitor.probes.optimizers import innermost
from finitune.monitor.process import Monitor, active
from finitune.monitor.run import Mode
from finitune.signals import Level


def watch(
    model: nn.Module, optimizer: Any, *, run_dir: str | Path | None = None, mode: Mode = "guard",
    signals: Level = "economy", skip_spikes: bool = False,
) -> Monitor:  # fmt: skip
    """Watch every step of `optimizer` on `model` from now on; nothing else in the loop changes.

    `model` may be a DeepSpeed engine, a DistributedDataParallel or what Accelerate made of it. The recording goes to
    `run_dir`, by default `runs/<time>`. There is one monitor in a process: where one runs already, the optimizer is
    added to it. The result is a context manager; leaving it, or the end of the process, ends the watch.

    `mode`: `observe` alters nothing, `guard` discards updates that are not finite, `heal` also applies remedies whose
    cause was proved, and undoes those that do not hold.

    With `skip_spikes` a finite step whose loss or gradient norm lies far above all that the run has shown is left out
    as well, at most three in a row.

    Raises TypeError for what is no model or optimizer, ValueError for an optimizer that trains none of the model.

    For instance: `finitune.watch(model, optimizer)` once, before the loop.
    """
    if not isinstance(model, nn.Module) or not hasattr(innermost(optimizer), "step"):
        raise TypeError(
            f"watch(model, optimizer): expected a torch module and an optimizer, found {type(model).__name__} and "
            f"{type(optimizer).__name__}"
        )
    running = active()
    if running is not None:
        running.add(optimizer, model)
        if run_dir is not None and Path(run_dir).resolve() != running.run_dir.resolve():
            running.note_directory(run_dir)
        return running
    _check_belongs(model, optimizer)
    monitor = Monitor(run_dir=run_dir, mode=mode, signals=signals, skip_spikes=skip_spikes)
    monitor.add(optimizer, model)
    return monitor


def _check_belongs(model: nn.Module, optimizer: Any) -> None:
    groups = getattr(innermost(optimizer), "param_groups", None)
    if not isinstance(groups, list):
        return
    trained = {id(p) for group in groups for p in group["params"]}
    own = {id(p) for p in model.parameters()}
    if trained and own and not trained & own and not hasattr(optimizer, "loss_scale"):
        raise ValueError(
            "the optimizer trains no parameter of this model (expected optimizer and model of one training)"
        )
