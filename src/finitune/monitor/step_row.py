"""One row of signals for each step, as the recording keeps it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.measurement import Reading
from finitune.monitor.probes.optimizers import learning_rate
from finitune.monitor.run import MOST_VALUES, Run
from finitune.monitor.samples import OF_UPDATE
from finitune.recorded_rank import OF_ONE_OPTIMIZER
from finitune.series import Series, Signals


def read_early(signals: Signals, reading: Reading) -> None:
    """Of a bad step what an investigation reads before its row is recorded: also what the update before it was."""
    signals["loss"].add(reading.step, reading.loss)
    signals["grad_norm"].add(reading.step, reading.grad_norm)
    if signals["skipped"].last_step == reading.step - 1:
        for name in OF_UPDATE:
            if math.isfinite(value := reading.more.get(name, math.nan)):
                signals[name].add(reading.step - 1, value)


def record_step(run: Run, watched: Watched, reading: Reading, seconds: float) -> None:
    """One row of signals. A second optimizer of the same step records what is its own under its name."""
    rate = learning_rate(watched.optimizer()) if "lr" not in reading.more else reading.more["lr"]
    row: dict[str, float | None] = {
        "loss": reading.loss if reading.losses else None,
        "grad_norm": reading.grad_norm if len(reading.norms) else None,
        "lr": rate if isinstance(rate, float) else None,
        "loss_scale": reading.scale if reading.scale != 1 else None,
        "skipped": float(reading.skipped),
        "bad_update": 1.0 if reading.bad_update else None,
        "reduction_error": reading.reduction_error,
        "seconds": seconds,
    }
    if run.level != "gate":
        row |= {"clip_factor": reading.clip_factor, "zero_gradients": _without_gradient(watched, reading)}
        row |= {n: value for n, value in reading.more.items() if n in run.signals and not math.isnan(value)}
    signals = run.signals
    of_update = {name: row.pop(name) for name in OF_UPDATE if name in row}
    if of_update and signals["skipped"].last_step == reading.step:
        run.recorder.beside(reading.step - 1, optimizer=watched.name, **of_update)
        if watched.name in run.beside:
            for name in of_update.keys() & run.beside[watched.name]:
                run.beside[watched.name][name].add(reading.step - 1, of_update[name] or 0.0)
    elif of_update and signals["skipped"].last_step == reading.step - 1:
        for name, value in of_update.items():
            signals[name].add(reading.step - 1, value or 0.0)
        run.recorder.step(reading.step - 1, **of_update)
    more_trained = _trained(run, watched, reading)
    if signals["skipped"].last_step == reading.step:
        _record_beside(run, watched, reading, row, more_trained)
        return
    row |= more_trained
    for name, value in row.items():
        if value is not None:
            signals[name].add(reading.step, value)
    run.recorder.step(reading.step, **row)


def _record_beside(
    run: Run, watched: Watched, reading: Reading, row: Mapping[str, float | None], more_trained: Mapping[str, float]
) -> None:
    """Another optimizer has stepped in this step already: the norm of the gradients is that of both."""
    signals = run.signals
    norm = math.hypot(signals["grad_norm"].last, reading.grad_norm)
    amended = {"grad_norm": norm, "skipped": max(signals["skipped"].last, float(reading.skipped)), **more_trained}
    for name, value in amended.items():
        signals[name].add(reading.step, value)
    run.recorder.step(reading.step, **amended)
    run.recorder.beside(reading.step, optimizer=watched.name, **row)
    if reading.losses and reading.loss != signals["loss"].last:
        own = run.beside.setdefault(watched.name, {name: Series(most=MOST_VALUES) for name in OF_ONE_OPTIMIZER})
        for name, value in row.items():
            if name in own and value is not None:
                own[name].add(reading.step, value)


def _trained(run: Run, watched: Watched, reading: Reading) -> dict[str, float]:
    """How many tensors have gradients, in a step in which more have one than ever."""
    if run.level == "gate" or reading.bad or reading.zero_gradients is None:
        return {}
    count = round(len(reading.norms) * (1 - reading.zero_gradients))
    if count <= run.trained.get(watched.name, 0):
        return {}
    run.trained[watched.name] = count
    return {"trained_tensors": float(sum(run.trained.values()))}


def _without_gradient(watched: Watched, reading: Reading) -> float | None:
    """The fraction of the optimizer's tensors whose gradient is exactly zero or absent."""
    held, seen = watched.count(), len(reading.norms)
    if reading.zero_gradients is None or not held:
        return reading.zero_gradients
    return (held - seen + reading.zero_gradients * seen) / held if held >= seen else reading.zero_gradients
