"""The monitor: asks before every optimizer step whether loss and gradients are finite, and acts when they are not.

A bad update is discarded by withholding the gradients from the optimizer for that one step. An optimizer that carries
its own loss scaler, and a GradScaler, keep their right to skip; then the monitor only looks.
"""

from __future__ import annotations

import atexit
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from finitune.monitor.incidents import Incidents, Mode, watched
from finitune.monitor.last_good import save_last_good
from finitune.monitor.probes import calls
from finitune.monitor.probes.finite import norms
from finitune.monitor.probes.measurement import Reading, Unclipped, read_step
from finitune.monitor.probes.optimizers import BeforeStep, GradScalerInside, innermost, learning_rate
from finitune.monitor.probes.ranks import rank_and_world
from finitune.monitor.probes.resumed_steps import steps_before
from finitune.monitor.probes.schedules import Schedules
from finitune.monitor.probes.update import update_of
from finitune.monitor.reduction import ReductionCheck
from finitune.monitor.replay.capture import Calls, Capture, entry_points
from finitune.printed import untruth
from finitune.recording import Recorder
from finitune.series import Series

MODES: tuple[Mode, ...] = ("observe", "guard")


class Stopped(SystemExit):
    """Raised where a guarded run ends because its fault persists; the process exits with code 3."""

    def __init__(self, message: str) -> None:
        super().__init__(3)
        self.message = message

    def __str__(self) -> str:
        return self.message


def watch(model: nn.Module, optimizer: Any, *, run_dir: str | Path | None = None, mode: Mode = "guard") -> Monitor:
    """Watch every step of `optimizer` on `model` from now on; nothing else in the loop changes.

    `model` may be a DeepSpeed engine, a DistributedDataParallel or what Accelerate made of it. The recording goes to
    `run_dir`, by default `runs/<time>`. The result is a context manager; leaving it, or the end of the process, ends
    the watch. An optimizer that is watched already keeps its monitor.
    """
    known = getattr(update_of(model, optimizer)[1].optimizer, "_finitune_monitor", None)
    return known if isinstance(known, Monitor) else Monitor(model, optimizer, run_dir=run_dir, mode=mode)


class Monitor:
    """Watches one model and its optimizer until closed. `step` is the last optimizer step that was begun, from 1."""

    def __init__(self, model: nn.Module, optimizer: Any, *, run_dir: str | Path | None = None, mode: Mode = "guard"):
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}")
        self.model, self.update = update_of(model, optimizer)
        self.mode = mode
        self.rank, world = rank_and_world()
        self.run_dir = Path(run_dir) if run_dir else Path("runs") / time.strftime("%Y%m%d-%H%M%S")
        self.step = 0
        self.told_by: object = None  # the framework's callback that passes on what is shown; there is one
        recorder = Recorder(self.run_dir, rank=self.rank, world=world)
        self.run_dir = recorder.directory
        self._run = watched(self.model, self.update, recorder, mode, world)
        self._incidents = Incidents(self._run)
        self._capture = Capture()
        self._calls = Calls()
        self._unclipped: Unclipped | None = None
        self._reading: Reading | None = None
        self._discarded = False
        self._before: BeforeStep | None = None
        self._schedules = Schedules()
        self._busy = False
        self._said: set[str] = set()
        self._began = time.perf_counter()
        self._handles: list[Any] = []
        self._listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running_step(self) -> int:
        """The step whose forward, backward or replay is running now, from 1."""
        return self.step if self._busy else self.step + 1

    @property
    def signals(self) -> Mapping[str, Series]:
        """What was measured so far, by name."""
        return self._run.signals

    @property
    def alerts(self) -> Sequence[tuple[int, str]]:
        """What was said so far, as (number from 1, text), the newest only."""
        return self._run.alerts

    def close(self) -> None:
        """End the watch; model and optimizer are as they were before it."""
        if not self._handles:
            return
        self._leave()
        self._run.recorder.event("end", step=self.step)
        self._run.recorder.close()

    def follow(self, model: nn.Module, optimizer: Any) -> None:
        """Watch these instead, which a framework has wrapped around the ones watched so far, before the first step."""
        self._leave()
        self.model, self.update = update_of(model, optimizer)
        self._run = replace(self._run, model=self.model, update=self.update)
        self._incidents = Incidents(self._run)
        self._listen()

    def check_printed(self, printed: Any, *, since: int, name: str = "loss") -> None:
        """Say and record the truth where a trainer shows a finite number for a step that was not, or the reverse."""
        seen = untruth(name, printed, self._run.signals[name], since=since)
        if seen is None or (seen.true_is_finite and self._run.world > 1):  # another rank's may be in what is shown
            return
        self._run.recorder.event(
            "log", step=self.step, signal=name, printed=seen.printed, true=seen.true, steps=seen.steps
        )
        self._say_once(f"{name} {seen.printed}", seen.text)  # a dead run shows the same line to its end

    def broken(self, error: BaseException) -> None:
        """A fault of finitune itself: said once, recorded, and training goes on."""
        text = f"{type(error).__name__}: {str(error)[:300]}"
        with contextlib.suppress(Exception):
            if text not in self._said:
                self._run.recorder.event("broken", step=self.step, text=text)
        self._say_once(text, f"finitune itself failed and left the run alone ({text})")

    def _say_once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self._run.say(f"step {self.step}: {text}")

    # The calls of the training loop, in the order in which a step makes them.

    def _listen(self) -> None:
        self._reduction = ReductionCheck(list(self.model.named_parameters()))
        for module in entry_points(self.model, self.update.parameters()):
            self._handles += [
                module.register_forward_pre_hook(self._guarded(self._before_forward), with_kwargs=True),
                module.register_forward_hook(self._guarded(self._after_forward), with_kwargs=True, always_call=True),
            ]
        self.update.listen(
            before=self._guarded(self._before_step),
            after=self._guarded(self._after_step),
            dropping=self._guarded(self._before_zero_grad),
        )
        self.update.optimizer._finitune_monitor = self
        calls.listen(self)
        atexit.register(self.close)

    def _leave(self) -> None:
        atexit.unregister(self.close)
        calls.leave(self)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._reduction.leave()
        self.update.leave()
        del self.update.optimizer._finitune_monitor

    def _guarded(self, method: Any) -> Any:
        """Our own exception never reaches the training loop; Stopped is meant to."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._busy:
                return None
            try:
                return method(*args, **kwargs)
            except Exception as error:
                self.broken(error)
                return None

        return run

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._calls.begin(module, args, kwargs) and not self.update.sharded:
            self._reduction.begin(self.step + 1)

    def _after_forward(self, _module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        self._calls.end(output)

    def before_backward(self, roots: list[Tensor]) -> None:
        micro = None if self._busy else self._calls.micro_step(roots[0])
        if micro is not None:
            self._capture.micro_steps.append(micro)

    def after_total_norm(self, norm: Tensor, count: int) -> None:
        """Clipping has measured the gradients and is about to scale them."""
        gradients = self._gradients()
        if not self._busy and count == len(gradients):
            self._unclipped = Unclipped.of(gradients, norm)

    def before_value_clip(self) -> None:
        """Clipping by value is about to turn infinities into the largest value that it allows."""
        gradients = self._gradients()
        if not self._busy and gradients:
            self._unclipped = Unclipped.by_value(gradients)

    def _before_step(self, _optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        itself, *rest = args
        closure = kwargs.get("closure", rest[0] if rest else None)
        self._before = self.update.before_step(self.step + 1) if self.mode == "guard" else None
        if not callable(closure):
            self._gate()
            return None
        gated = self._gated(closure)
        return (args, {**kwargs, "closure": gated}) if "closure" in kwargs else ((itself, gated, *rest[1:]), kwargs)

    def _gated(self, closure: Any) -> Any:
        """The closure, passing the gate each time it has computed gradients."""
        self._discarded = False
        evaluations = 0

        def gated() -> Any:
            nonlocal evaluations
            result = closure()
            evaluations += 1
            if evaluations == 1:
                self._guarded(self._gate)()
            elif self._before and not bool(torch.isfinite(norms(self._gradients())).all()):
                self._discard()
            return result

        return gated

    def _gate(self) -> None:
        self._discarded = False
        if self._only_makes_state():
            return
        update = self.update
        fused = GradScalerInside.of(update.optimizer)
        self._reading = self._read(scale=update.loss_scale, scaled=update.loss_scale is not None or fused.scaled)
        if not update.sharded:
            with self._paused():
                self._incidents.compare_reduction(self._reduction, self._reading, self._capture)
        if not self._reading.bad:
            return
        try:
            with self._paused():
                self._incidents.bad(self._reading, self._capture, may_settle=update.skips_overflows or fused.decides)
        finally:  # an investigation that fails lets no bad update through
            # A bad loss with sound gradients is none of the loss scaler's business.
            if self.mode == "guard" and not (update.skips_overflows and self._reading.bad_gradients):
                self._discard()

    def _only_makes_state(self) -> bool:
        """DeepSpeed has the optimizer make its state by a step on zero gradients, before anything was computed."""
        begun = self.step > 0 or self._capture.micro_steps
        return not begun and not bool(norms(self._gradients()).any())

    def _discard(self) -> None:
        self.update.withhold()
        self._discarded = True

    def _after_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        before, self._before = self._before, None
        self.update.give_back()
        reading, self._reading = self._reading, None
        if before is not None:
            spoiled = before.spoiled() if reading is not None and not self._discarded else []
            if self._discarded or spoiled:
                before.restore()
            if reading is not None and spoiled:
                self._discarded = reading.bad = reading.bad_update = True
                with self._paused():
                    self._incidents.bad_update(reading, self._capture, spoiled)
        if reading is not None:
            del self._capture.micro_steps[len(reading.losses) :]  # of a line search, which calls its closure again
            reading.skipped = self._discarded or self.update.skipped
            self._finish(reading)

    def after_scaler_step(self, scaler: Any, optimizer: Any) -> None:
        """GradScaler.step has returned; if it did not call the optimizer, it skipped."""
        if self._busy or innermost(optimizer) is not self.update.optimizer or not self._capture.micro_steps:
            return
        reading = self._read(scale=float(scaler.get_scale()), scaled=False)
        reading.skipped = reading.bad = True
        with self._paused():
            self._incidents.bad(reading, self._capture, may_settle=True)
        self._finish(reading)

    def _before_zero_grad(self) -> None:
        """Gradients about to be dropped without a step: the loop itself decided to skip."""
        if not self._capture.micro_steps or self._reading is not None:
            return
        reading = self._read(scale=None, scaled=True)
        reading.skipped = True
        if reading.bad:
            with self._paused():
                self._incidents.bad(reading, self._capture, may_settle=reading.scale > 1)
        self._finish(reading)

    def scheduler_may_step(self, scheduler: Any) -> bool:
        if self._busy or innermost(scheduler.optimizer) is not self.update.optimizer:
            return True
        return self._schedules.may_step(scheduler, self.step, discarded=self._discarded)

    # What a step comes to.

    def _read(self, *, scale: float | None, scaled: bool) -> Reading:
        """Measure the step; `scale` None means: what the loop itself multiplied its loss with."""
        self.step = (self.step or steps_before(self.update.optimizer, self._run.recorder.earlier_skips)) + 1
        micros = self._capture.micro_steps
        if scale is None:
            scale = micros[0].objective.scale() if micros and micros[0].objective else 1.0
        roots = [micro.root for micro in micros if micro.root is not None and micro.root.numel() == 1]
        return read_step(
            self.step, roots, self._gradients(), self._unclipped,
            scale=scale, scaled=scaled, sharded=self.update.sharded,
        )  # fmt: skip

    def _gradients(self) -> list[Tensor]:
        return [gradient for _, gradient in self.update.gradients()]

    def _finish(self, reading: Reading) -> None:
        now = time.perf_counter()
        row = {
            "loss": reading.loss if reading.losses else None,
            "grad_norm": reading.grad_norm,
            "lr": learning_rate(self.update.optimizer),
            "loss_scale": reading.scale if reading.scale != 1 else None,
            "skipped": float(reading.skipped),
            "bad_update": 1.0 if reading.bad_update else None,
            "reduction_error": reading.reduction_error,
            "seconds": now - self._began,
        }
        self._began = now
        for name, value in row.items():
            if value is not None:
                self._run.signals[name].add(reading.step, value)
        self._run.recorder.step(reading.step, **row)
        capture, self._capture, self._unclipped = self._capture, Capture(), None
        with self._paused():
            why = self._incidents.over(reading, capture)
            if why is not None:
                self._stop(why)

    def _stop(self, why: str) -> None:
        checkpoint = self.run_dir / "last-good"
        why_not = save_last_good(self.model, self.update, checkpoint, write=self.rank == 0)
        self._run.recorder.event(
            "stop", step=self.step, incident=self._incidents.open_id, text=why,
            checkpoint=None if why_not else str(checkpoint),
        )  # fmt: skip
        where = why_not or f"weights of the last good step are in {checkpoint}"
        if self.rank == 0:
            self._run.say(f"step {self.step}: {why}. Run ended; {where}")
        self.close()
        raise Stopped(why)

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        """While the monitor itself runs the model, it does not watch."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
