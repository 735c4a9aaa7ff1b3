"""What the training loop does, in the order in which a step does it, handed to the gate.

Every method is called by an observed function of torch, by an observed class, or by a hook of torch's optimizers.
While the monitor itself runs the model, nothing is heard.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from finitune.monitor.capture.loss_scalers import carries_scale, scale_seen
from finitune.monitor.capture.step import Call, MicroStep
from finitune.monitor.capture.step_calls import Calls
from finitune.monitor.closures import ClosureSteps
from finitune.monitor.gate import Gate
from finitune.monitor.intervals import MOST_NODES, Intervals
from finitune.monitor.micro_steps import Pending
from finitune.monitor.optimizers import Optimizers, Watched
from finitune.monitor.probes import model_calls, optimizer_steps
from finitune.monitor.probes.embeddings import input_embedding
from finitune.monitor.probes.foreign import leaves_of
from finitune.monitor.probes.measurement import EachNorm, Unclipped
from finitune.monitor.probes.optimizer_steps import SKIP, UNWATCHED
from finitune.monitor.probes.optimizers import innermost
from finitune.monitor.probes.out_of_range import Flags
from finitune.monitor.run import Run
from finitune.monitor.step_measures import is_of_device
from finitune.monitor.threads import EachThread
from finitune.monitor.user_code.ended_frames import GivenGradient
from finitune.monitor.user_code.source_line import is_running

DEEPEST = 4
"""Backwards after which the modules within the watched ones are watched too, where the loss comes from none of them."""


class Process(Protocol):
    """What the listener tells the monitor."""

    def optimizer_made(self, optimizer: Any) -> None: ...
    def training_begins(self) -> None: ...
    def broken(self, error: BaseException) -> None: ...
    def note(self, what: str, **fields: Any) -> None: ...


class _Here(threading.local):
    """What the present thread is doing."""

    busy = False
    """The monitor itself runs the model."""
    in_closure = False
    """An optimizer's step has called the closure that it was given."""
    trained: Sequence[Watched] = ()
    """Optimizers whose parameters the last backward has reached, where other threads train others."""


class Listener:
    """Hears of every backward, every optimizer step and every model call of this process."""

    def __init__(self, run: Run, optimizers: Optimizers, pendings: EachThread[Pending], process: Process) -> None:
        self.here = _Here()
        self._run = run
        self._optimizers = optimizers
        self._pendings = pendings
        self._callings = EachThread(Calls)
        self._scalings: EachThread[dict[int, tuple[Tensor, Tensor, Any]]] = EachThread(dict)
        """What a GradScaler has made of a loss, the loss, and the scaler."""
        self._process = process
        self._lock = threading.RLock()
        self._running: dict[int, MicroStep] = {}
        """The backwards that run now, by the thread that has called each."""
        self._deeper = 0
        self._vocabulary: tuple[int, int | None] = (-1, None)
        self.known = False
        """Which rank this process is."""

    def serves(self, gate: Gate, intervals: Intervals) -> None:
        self._gate = gate
        self._closures = ClosureSteps(gate, self.here, self.guarded)
        self._intervals = intervals

    def broken(self, error: BaseException) -> None:
        self._process.broken(error)

    def optimizer_made(self, optimizer: Any) -> None:
        if self.here.busy:
            return
        self._process.optimizer_made(optimizer)
        watched = self._optimizers.get(optimizer)
        if watched is not None and any(p.grad is not None for p in watched.parameters()):
            self._pending.claim(watched.number)
            self._intervals.claimed(watched)

    # The forward.

    def call_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        if self.here.busy:
            return None
        call = self._calls.begin(module, args, kwargs)
        self._gate.measures.statistics.model_called(module)
        if call is not None and any(t.device.type != "cpu" for t, _ in call.versions):
            call.range_flag = Flags.set(call.token_ids(), self.vocabulary())
        return call

    def call_ended(self, token: Any, output: Any, *, failed: bool) -> None:
        if not self.here.busy:
            self._calls.end(token, output, failed=failed)

    def tensors_packed(self) -> None:
        if not self.here.busy and self._open is None:  # checkpointing recomputes within the backward
            self._calls.packs()

    def loss_scaled(self, scaler: Any, loss: Any, scaled: Any) -> None:
        if isinstance(scaled, Tensor) and scaler.is_enabled():
            scalings = self._scalings.get()
            scalings.clear()
            scalings[id(scaled)] = (scaled, loss.detach(), scaler)

    # The backward.

    def backward_begins(self, roots: list[Tensor], gradients: list[Tensor | None]) -> None:
        if self.here.busy:
            return
        with self._lock:
            self._backward_begins(roots, gradients)

    def _backward_begins(self, roots: list[Tensor], gradients: list[Tensor | None]) -> None:
        self._training_begins()
        self._interrupted()
        self._see_threads(roots)
        self._pending.begin(self._optimizers.numbers)
        micro = self._calls.micro_step(roots, self._pending.calls())
        micro.given = GivenGradient.among(gradients)
        self._gate.loss_seen(roots, micro)
        if micro.unreadable is not None and self._deeper < DEEPEST:
            self._deeper += 1
            model_calls.observe_deeper(self._calls.fruitful)
        for root in roots:
            _, loss, scaler = self._scalings.get().pop(id(root), (None, None, None))
            if scaler is not None and loss is not None and scaler._scale is not None:
                scale_seen(micro, scaler, loss)
        for watched in self._trained():
            watched.backward_begins()
            self._gate.measures.backward_begins(self._gate.step + 1, watched)
        if not self._pendings.apart:
            self._intervals.backward_begins(roots)
        self._running[threading.get_ident()] = micro
        self._pending.micro_steps.append(micro)

    def backward_ended(self, *, failed: bool) -> None:
        micro = self._running.pop(threading.get_ident(), None)
        if micro is None or self.here.busy:
            return
        if failed:
            self._pending.micro_steps = [m for m in self._pending.micro_steps if m is not micro]
            return
        with self._lock:
            self._backward_ended(micro)

    def _backward_ended(self, micro: MicroStep) -> None:
        for watched in self._trained():
            self._gate.measures.backward_ended(watched)
            if watched.backward_ended():
                micro.touched.add(watched.number)
                watched.fresh = True
        if not self._pendings.apart:
            with self.paused():
                self._intervals.backward_ended(micro)

    def gradients_asked(self, roots: list[Tensor], inputs: list[Tensor], *, derived_again: bool = False) -> None:
        if self.here.busy:
            return
        self._training_begins()
        asked = {id(tensor) for tensor in inputs}
        if derived_again or all(asked.isdisjoint(map(id, watched.parameters())) for watched in self._optimizers):
            self._intervals.gradients_asked(self._calls, roots, inputs, derived_again=derived_again)
        else:
            micro = self._calls.micro_step(roots, self._pending.calls())
            self._gate.loss_seen(roots, micro)
            self._pending.ask(micro)

    def gradients_returned(self, gradients: Sequence[Any]) -> None:
        if not self.here.busy:
            with self.paused():
                self._intervals.gradients_returned(gradients)

    def tensor_shared(self, tensor: Tensor, group: Any, summed: bool) -> None:  # noqa: FBT001
        """The loop itself reduces or gathers gradients, or has `summed` what flows between the parts of a model."""
        if self.here.busy or tensor.numel() < 2 or not tensor.is_floating_point() or not self._pending.micro_steps:
            return
        for watched in self._trained():
            own = any(g.data_ptr() == tensor.data_ptr() for g in watched.gradients()) or (summed and self._open is None)
            if own or summed:
                watched.reduced_over(group, gradients=own)

    # Clipping.

    def norm_measured(self, norm: Tensor, tensors: list[Tensor], each: EachNorm) -> None:
        """Clipping has measured gradients and is about to scale them."""
        if self.here.busy:
            return
        measured = list(map(id, tensors))
        among = frozenset[int]()
        for watched in self._trained():
            gradients = watched.gradients()
            own = list(map(id, gradients))
            everything = own == measured
            if not everything:  # each parameter may have an optimizer of its own
                among = among or frozenset(measured)
                everything = len(own) == len(among) and among.issuperset(own)
            if own and (everything or among.issuperset(own)):
                scaled = carries_scale(self._pending.of(watched.number), watched.optimizer())
                watched.unclipped = Unclipped.of(gradients, norm if everything else None, each, scaled=scaled)

    def clipping(self, parameters: list[Tensor], max_norm: float) -> None:
        for watched in self._trained():
            if watched.unclipped is not None and isinstance(max_norm, int | float):
                watched.unclipped = watched.unclipped.with_limit(float(max_norm))

    def clipping_by_value(self) -> None:
        """Clipping by value is about to turn infinities into the largest value that it allows."""
        if self.here.busy:
            return
        for watched in self._trained():
            gradients = watched.gradients()
            if gradients:
                watched.unclipped = Unclipped.by_value(gradients)

    # The step.

    @property
    def heals(self) -> bool:
        return self._run.mode == "heal"

    def step_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, skippable: bool) -> Any:
        watched = None if self.here.busy else self._stepped_by(optimizer)
        if watched is None or self._intervals.has_judged(watched):
            return SKIP if not self.here.busy and self._intervals.withholds(optimizer) else UNWATCHED
        watched.steps += 1
        watched.is_wrapped = watched.optimizer() is not optimizer
        watched.evaluations, watched.first_gradients = 0, None
        begin = getattr(watched.update, "begin", None)
        if begin is not None:
            begin()
        if self._open is not None:  # a step within the backward, as where each parameter has an optimizer of its own
            self._open.touched.add(watched.number)
        closure = optimizer_steps.closure_in(args, kwargs)
        if closure is None:
            watched.arguments = (args, kwargs)
            return None if self._opens(watched, skippable=skippable) else SKIP
        gated = self._closures.begins(watched, closure, guards=self._run.guards)
        return (args, {**kwargs, "closure": gated}) if "closure" in kwargs else ((gated, *args[1:]), kwargs)

    @contextlib.contextmanager
    def trial(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        if self.here.busy:
            yield
            return
        with self._intervals.trial(optimizer, args, kwargs):
            yield
        self.guarded(self._intervals.trial_ended)

    def _stepped_by(self, optimizer: Any) -> Watched | None:
        """Also of one that does more around the step of a watched one, with its gradients."""
        return self._optimizers.get(optimizer) or self._optimizers.get(innermost(optimizer))

    def step_ended(self, optimizer: Any, *, failed: bool) -> None:
        watched = None if self.here.busy else self._stepped_by(optimizer)
        if watched is not None:
            self._closures.ended(watched)
            self.guarded(self._gate.closes, watched, failed=failed)
            self._intervals.step_ended(watched)
            watched.arguments = ((), {})
            self._calls.step_ended(watched.number, self._optimizers.numbers)

    def scaler_stepped(self, scaler: Any, optimizer: Any) -> None:
        """GradScaler.step has returned; if it did not call the optimizer, it skipped."""
        watched = None if self.here.busy else self._optimizers.get(innermost(optimizer))
        if watched is not None and self._pending.of(watched.number) and watched.deferred is None:
            self.guarded(self._gate.scaler_skipped, watched)

    def gradients_dropped(self, parameters: Callable[[], list[Tensor]]) -> None:
        """Those of `parameters` are about to be set to zero or to None."""
        if self.here.busy or not self._pending.micro_steps:
            return
        dropped = {id(p) for p in parameters()}
        waited_for = {number for micro in self._pending.micro_steps for number in micro.touched}
        for watched in self._optimizers:
            if watched.number in waited_for and any(id(p) in dropped for p in watched.parameters()):
                with self.paused():
                    self._intervals.gradients_dropped(watched)
                self.guarded(self._gate.dropped, watched)

    def gradients_emptied(self, optimizer: Any) -> None:
        """All of this optimizer are about to be set to None."""
        watched = None if self.here.busy else self._optimizers.get(optimizer)
        if watched is not None:
            watched.emptied = True

    def scheduler_may_step(self, scheduler: Any) -> bool:
        watched = None if self.here.busy else self._optimizers.get(innermost(scheduler.optimizer))
        if watched is None:
            return True
        if watched.deferred is not None:
            watched.deferred.schedules.append(self._gate.schedules.remember(scheduler))
        return self._gate.schedules.may_step(scheduler, self._gate.step, discarded=watched.discarded)

    # What these use.

    @property
    def _pending(self) -> Pending:
        return self._pendings.get()

    @property
    def _calls(self) -> Calls:
        return self._callings.get()

    @property
    def _open(self) -> MicroStep | None:
        """The backward that runs; on a device its nodes do so in a thread of their own."""
        own = self._running.get(threading.get_ident())
        return own or (None if self._pendings.apart else next(iter(self._running.values()), None))

    def _see_threads(self, roots: list[Tensor]) -> None:
        """A backward is about to run: where one of another thread runs, each has its own optimizers from now on. Those
        of the others are not to be looked at, as a backward writes gradients while other threads run.
        """
        others = self._running.keys() - {threading.get_ident()}
        if others and not self._pendings.apart:
            self._pendings.separate(min(others))
            self._callings.separate(min(others))
            self._scalings.separate(min(others))
            self._process.note("threads", text="several threads train at the same time: signals are not judged")
        if self._pendings.apart:
            leaves = {id(leaf) for leaf in leaves_of(roots, MOST_NODES)}
            self.here.trained = [one for one in self._optimizers if any(id(p) in leaves for p in one.parameters())]

    def _trained(self) -> Iterable[Watched]:
        return self.here.trained if self._pendings.apart else self._optimizers

    def calls_kept(self) -> list[Call]:
        """Those since the last backward."""
        return self._calls.kept()

    def calls_of_this_step(self) -> list[Call]:
        return [*self._pending.calls(), *self._calls.kept()]

    def vocabulary(self) -> int | None:
        """Rows of the input embedding of the first model that is trained; None where there is none."""
        first = self._optimizers.first()
        if first is not None and self._vocabulary[0] != first.number:
            embedding = input_embedding(first.model) if first.model is not None else None
            self._vocabulary = first.number, getattr(embedding, "num_embeddings", None)
        return self._vocabulary[1]

    def guarded(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        """Our own exception never reaches the training loop; Stopped and errors of the device are meant to."""
        with self.paused():
            try:
                return method(*args, **kwargs)
            except Exception as error:
                if is_of_device(error):
                    raise
                self._process.broken(error)
                return None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While the monitor itself runs the model, it does not watch."""
        before = self.here.busy
        with self._lock:
            self.here.busy = True
            try:
                yield
            finally:
                self.here.busy = before

    def _opens(self, watched: Watched, *, skippable: bool) -> bool:
        answer = self.guarded(self._gate.opens, watched, skippable=skippable)
        return True if answer is None else answer

    def _interrupted(self) -> None:
        """An optimizer's step that raised was not seen to end."""
        stepping = optimizer_steps.stepping()
        if stepping is None or self.here.in_closure or is_running(inspect.unwrap(type(stepping).step)):
            return  # nor where the step itself runs this backward
        watched = self._stepped_by(optimizer_steps.interrupted())
        if watched is not None:
            self._gate.closes(watched, failed=True)

    def _training_begins(self) -> None:
        if not self.known:
            self.known = True
            self._process.training_begins()
