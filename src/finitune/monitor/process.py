"""The monitor: one per process. What it watches, where it records, and how the run ends."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import multiprocessing.util
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from finitune.monitor.bad_weight import bad_weight
from finitune.monitor.capture.step import Call, Capture
from finitune.monitor.checkpoints import SUFFIX, Checkpoints
from finitune.monitor.gate import Gate
from finitune.monitor.incidents import Incidents
from finitune.monitor.intervals import Intervals
from finitune.monitor.last_good import save_last_good
from finitune.monitor.listener import Listener
from finitune.monitor.live_step import LiveStep
from finitune.monitor.micro_steps import Pending
from finitune.monitor.optimizers import Optimizers, Watched
from finitune.monitor.probes import model_calls, optimizer_steps, torch_calls
from finitune.monitor.probes.modules import Modules, entry_points, unwrapped
from finitune.monitor.probes.optimizers import innermost, skips_whole_call
from finitune.monitor.probes.ranks import rank_and_world
from finitune.monitor.probes.update import update_of
from finitune.monitor.run import Mode, Run
from finitune.monitor.speech import Speech
from finitune.monitor.spikes import Spikes
from finitune.monitor.step_places import StepPlace
from finitune.monitor.threads import EachThread
from finitune.printed import untruth
from finitune.recording import Recorder
from finitune.series import Series
from finitune.signals import LEVELS, Level

MODES: tuple[Mode, ...] = ("observe", "guard", "heal")

_active: list[Monitor] = []


def active() -> Monitor | None:
    """The monitor of this process, None where there is none."""
    return _active[-1] if _active else None


class Stopped(SystemExit):
    """Raised where a guarded run ends because its fault persists; the process exits with code 3."""

    def __init__(self, message: str) -> None:
        super().__init__(3)
        self.message = message

    def __str__(self) -> str:
        return self.message


class Monitor:
    """Watches the optimizers of this process until closed. `step` is the last optimizer step that was begun, from 1."""

    def __init__(
        self, *, run_dir: str | Path | None = None, mode: Mode = "guard", signals: Level = "economy",
        everything: bool = False, watch_step: int | None = None, skip_spikes: bool = False,
    ) -> None:  # fmt: skip
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}")
        if signals not in LEVELS:
            raise ValueError(f"signals is {signals!r}; it must be one of {', '.join(LEVELS)}")
        self.mode = mode
        self.logged_by: object = None
        """The framework's callback that passes on what is shown; there is one."""
        self._everything = everything
        self._closed = self._forked = False
        recorder = Recorder(run_dir or Path("runs") / time.strftime("%Y%m%d-%H%M%S"))
        self._modules, self._optimizers, self._pendings = Modules(), Optimizers(), EachThread(Pending)
        self._run = Run(recorder=recorder, mode=mode, level=signals, modules=self._modules, speech=Speech())
        self._listener = Listener(self._run, self._optimizers, self._pendings, self)
        self._incidents = Incidents(self._run, self._optimizers)
        self._incidents.waiting = self._listener.calls_kept
        calls_now, say = self._listener.calls_of_this_step, self._run.speech.say
        self._live = LiveStep(self._modules, calls_now, say, watch_step)
        self._gate = Gate(
            self._run, self._optimizers, self._pendings, self._incidents, self._live, self._stop, self.broken
        )
        if skip_spikes and mode != "observe":
            self._gate.spikes = Spikes(self._run)
        if mode == "heal":
            from finitune.monitor.heal.policy import Healing  # needs more than torch

            self._gate.healing = Healing(self._run, self._incidents)
        self._intervals = Intervals(
            self._run, self._incidents, self._live, self._gate, self._optimizers, self._pendings
        )
        self._listener.serves(self._gate, self._intervals)
        self._checkpoints = Checkpoints(self._optimizers, self._poisoned, self._saved, guards=self._run.guards)
        torch_calls.listen(self._listener)
        optimizer_steps.listen(self._listener)
        model_calls.observe(self._listener, ())
        atexit.register(self.close)
        _active.append(self)
        _restart_in_children(self)
        self._live.step_follows(1)

    def __enter__(self) -> Monitor:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        watched = ", ".join(known.name for known in self._optimizers) or "no optimizer yet"
        return f"<finitune.Monitor: {watched}; step {self.step}; {self.mode}; recording in {self.run_dir}>"

    @property
    def run_dir(self) -> Path:
        return self._run.run_dir

    @run_dir.setter
    def run_dir(self, directory: str | Path) -> None:
        """Record in this directory, if nothing has been recorded yet."""
        if not self._run.recorder.opened:
            self._run.recorder.directory = Path(directory)

    @property
    def rank(self) -> int:
        return self._run.recorder.rank

    @property
    def step(self) -> int:
        return self._gate.step

    @step.setter
    def step(self, step: int) -> None:
        """A resumed training goes on counting."""
        self._gate.step = step
        for known in self._optimizers:
            known.last = step
        self._live.step_follows(step + 1)

    @property
    def running_step(self) -> int:
        """The step whose forward, backward or replay is running now, from 1."""
        return self.step if self._listener.here.busy else self.step + 1

    @property
    def model(self) -> nn.Module:
        """The first model that is watched.

        Raises ValueError where no module owns what is trained.
        """
        first = self._optimizers.first()
        model = first.model if first is not None else None
        if model is None:
            raise ValueError("what is trained belongs to no module")
        return model

    @property
    def models(self) -> list[nn.Module]:
        """The user's own models that hold what is trained, as far as they are known."""
        return [unwrapped(root) for root in self._modules.roots()]

    @property
    def signals(self) -> Mapping[str, Series]:
        """What was measured so far, by name."""
        return self._run.signals

    @property
    def alerts(self) -> Sequence[tuple[int, str]]:
        """What was said so far, as (number from 1, text), the newest only."""
        return self._run.speech.alerts

    @property
    def closed(self) -> bool:
        return self._closed

    def add(self, optimizer: Any, model: nn.Module | None = None) -> Watched:
        """Watch this optimizer too; `model` may be a DeepSpeed engine, a DistributedDataParallel or any part of it."""
        engine: Any = model if model is not None and update_of(optimizer, model).engine is model else None
        if engine is not None:
            optimizer = engine.optimizer or optimizer
        optimizer = innermost(optimizer)
        watched = self._optimizers.add(optimizer, born=self.step, modules=self._modules, engine=engine)
        if model is not None:
            inner = unwrapped(model if engine is None else engine.module)
            self._modules.add(inner)
            watched.model = inner
        parameters = watched.parameters()
        self._modules.find(parameters)
        if skips_whole_call(optimizer):
            optimizer_steps.observe_class(type(optimizer))
        torch_calls.observe_zero_grad(type(optimizer))
        roots = [unwrapped(engine.module)] if engine is not None else self._modules.owners(parameters)
        if model is not None and engine is None:
            roots = [model, *roots]
        model_calls.observe(self._listener, [entry for root in roots for entry in entry_points(root, parameters)])
        self._live.training_begins()
        return watched

    def follow(self, optimizer: Any, wrapped: Any, model: nn.Module | None = None) -> None:
        """Watch `wrapped`, which a framework has put around `optimizer`, instead of it."""
        self._optimizers.remove(innermost(optimizer))
        self.add(wrapped, model)

    def close(self) -> None:
        """End the watch; torch and every class are as they were before it."""
        if self._closed:
            return
        with self._listener.paused():
            for watched in self._optimizers:
                with contextlib.suppress(Exception, SystemExit):
                    self._gate.settle(watched)
            for watched in (*self._optimizers, *self._intervals.watched):
                with contextlib.suppress(Exception):
                    self._gate.ended(watched)
            self._live.taken()
        self._closed = True
        _active.remove(self)
        atexit.unregister(self.close)
        torch_calls.leave(self._listener)
        optimizer_steps.leave()
        model_calls.leave()
        self._checkpoints.leave()
        if self._run.recorder.opened:
            self._say_how_it_ended()
            self._run.recorder.event("end", step=self.step)
        self._run.recorder.close()

    def check_printed(self, printed: Any, *, since: int, name: str = "loss") -> None:
        """Say and record the truth where a trainer shows a finite number for a step that was not, or the reverse."""
        seen = untruth(name, printed, self._run.signals[name], since=since)
        if seen is None or (seen.true_is_finite and self._run.world > 1):  # another rank's may be in what is shown
            return
        self._run.recorder.event(
            "log", step=self.step, signal=name, printed=seen.printed, true=seen.true, steps=seen.steps
        )
        # A dead run shows the same line to its end.
        self._run.speech.once(f"{name} {seen.printed}", f"step {self.step}: {seen.text}")

    def broken(self, error: BaseException) -> None:
        """A fault of finitune itself: said once, recorded, and training goes on."""
        self._run.broken(self.step, error)

    def note(self, what: str, **fields: Any) -> None:
        """Recorded where a recording has begun, and not said."""
        if self._run.recorder.opened:
            self._run.recorder.event("note", step=self.step, note=what, **fields)

    def note_directory(self, asked: str | Path) -> None:
        """Another directory was asked for, and there is one recording in a process."""
        self._run.speech.once(f"directory {asked}", f"{asked}: this process is recorded in {self.run_dir} already")

    def crashed(
        self, *, text: str, frames: Sequence[str], line: str | None, facts: Any, thread: str | None,
        places: Sequence[StepPlace], ends_step: bool,
    ) -> None:  # fmt: skip
        """An exception ends the program, or a thread of it, that was training. `places` are those of its frames;
        `ends_step`: it comes from what belongs to the end of a step.
        """
        live = self._live.taken()
        if not len(self._optimizers) and not self.step:
            return
        weight = bad_weight(self._run.modules, self._optimizers)
        first, of_weights = self._optimizers.first(), {}
        if first is not None:
            with contextlib.suppress(Exception):
                from finitune.monitor.capture.batch_facts import facts_of_batch

                self._incidents.describe_run(first, Capture(micro_steps=[]))
                of_weights = {"facts": facts_of_batch(first.model, Capture(micro_steps=[]))} if weight else {}
        self._incidents.crashed(
            self.step + (not ends_step and not self._gate.ends_step(places)), last_good=self.step,
            text=text, frames=frames, line=line, batch=facts, thread=thread, was_live=weight is None,
            seen=weight or (live.watch.found() if live is not None else None), **of_weights,
        )  # fmt: skip

    def last_calls(self) -> list[Call]:
        """The model calls of the step that runs."""
        return self._listener.calls_of_this_step()

    def vocabulary(self) -> int | None:
        """Rows of the input embedding of the model that is trained; None where there is none."""
        return self._listener.vocabulary()

    def has_discarded(self, parameters: Iterable[Any]) -> bool:
        """Whether the last step of an optimizer of any of these was discarded."""
        training = self._optimizers.training(parameters)
        return any(self._gate.has_discarded(watched) for watched in training)

    def hold_back_saves(self) -> None:
        """Checkpoints go into the recording instead of their own places: this run is only there to be watched."""
        self._checkpoints.held_back = self.run_dir / "saves"

    def observe_writers(self) -> None:
        """A writer of checkpoints has been imported."""
        self._checkpoints.observe_writers()

    def optimizer_made(self, optimizer: Any) -> None:
        """A torch optimizer was made in this process."""
        if self._everything:
            self.add(optimizer)

    def training_begins(self) -> None:
        """The first backward: which rank this process is, is known by now."""
        recorder, speech = self._run.recorder, self._run.speech
        recorder.rank, recorder.world = speech.rank, speech.world = rank_and_world()
        if self._forked:  # such a process ends without the interpreter's own exit
            multiprocessing.util.Finalize(None, self.close, exitpriority=0)

    def restart(self) -> None:
        """Record anew: the process is a fork of the one that was watched until now."""
        self._run.recorder.forked()
        self._pendings.get().clear()
        self._forked = True
        self._listener.known = False
        self.step = 0

    def _say_how_it_ended(self) -> None:
        if self.rank or not self.step or self._run.recorder.is_second:
            return
        bad, suspicions, unknown = self._incidents.bad_steps, self._incidents.suspicions, self._gate.unmeasured
        what = f"{bad} of them not finite" if bad else "all finite" if not unknown else "none seen not finite"
        what += f", {unknown} not measured" if unknown else ""
        more = f", {suspicions} suspicion{'s' * (suspicions > 1)}" if suspicions else ""
        steps = f"{self.step} step{'s' * (self.step > 1)}"
        where = "" if self._optimizers.decided_together(self._run.speech.world) else f" on rank {self.rank}"
        self._run.speech.say_at_the_end(f"{steps}, {what}{where}{more}; recorded in {self.run_dir}")
        if self._gate.healing is not None and (lines := self._gate.healing.summary()):
            self._run.speech.say(*lines)

    def _poisoned(self, path: str, bad: list[str], beside: bool) -> None:  # noqa: FBT001
        """A file is about to be written with weights that are not finite."""
        what = f"{Path(path).name or 'a file'} would hold non-finite weights ({bad[0]}, {len(bad)} tensors in all)"
        done = f"written as {Path(path).name}{SUFFIX}, what was there stays" if beside else "written as asked"
        self._run.recorder.event("checkpoint", step=self.step, path=path, bad=bad[:100], beside=beside)
        self._run.speech.rarer("checkpoint", f"step {self.step}: {what}: {done}")

    def _saved(self, path: str, weights: set[int], all_weights: set[int]) -> None:
        """A file with finite weights has been written."""
        whole = self._run.saves.written(path, self.step, weights, all_weights)
        if whole is not None:
            self._run.recorder.event("saved", step=whole.step, path=whole.path)

    def _stop(self, why: str, watched: Watched, *, asked: bool = False) -> None:
        """End the run; `asked`: by `--watch-step`, so that no weights need be saved."""
        checkpoint, why_not, incident = self.run_dir / "last-good", "", self._incidents.open
        if not asked:
            try:
                why_not = save_last_good(watched, checkpoint, write=watched.group.rank == 0)
            except Exception as error:  # a full disk, a model that cannot be saved: the run ends all the same
                why_not = f"no checkpoint was written ({type(error).__name__}: {str(error)[:200]})"
        with contextlib.suppress(Exception):
            self._run.recorder.event(
                "watched" if asked else "stop", step=self.step, incident=incident and incident.event["id"], text=why,
                checkpoint=None if asked or why_not else str(checkpoint),
            )  # fmt: skip
        clean = self._run.saves.newest() if why_not else None
        where = why_not or f"weights of the last finite step are in {checkpoint}"
        where += f"; {clean.text}" if clean is not None else ""
        self._run.speech.say(f"step {self.step}: {why}. Run ended" + ("" if asked else f"; {where}"))
        if threading.current_thread() is threading.main_thread():
            self.close()
        else:  # it would end this thread alone: the main one is interrupted, and the gate stays shut until it ends
            self._gate.shut = True
            _interrupt_main()
        raise Stopped(why)


def _interrupt_main() -> None:
    """Raise KeyboardInterrupt in the main thread. In the background job of a script nobody handles SIGINT, and
    `interrupt_main`, which only simulates it, does nothing.
    """
    if callable(signal.getsignal(signal.SIGINT)):
        _thread.interrupt_main()
        return
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(KeyboardInterrupt))


def _restart_in_children(monitor: Monitor) -> None:
    """A forked child that trains is watched as well; one that only loads data records nothing."""
    if not hasattr(os, "register_at_fork"):
        return
    known = weakref.ref(monitor)

    def forked() -> None:
        alive = known()
        if alive is not None and not alive.closed:
            alive.restart()

    os.register_at_fork(after_in_child=forked)
