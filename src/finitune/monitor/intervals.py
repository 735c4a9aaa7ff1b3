"""Programs in which no object has a `step`: a step is the interval between two groups of backwards.

The gradients are judged right after the backward, while the weights are still those that made them. An update in the
loop's own code cannot be discarded, which is said once; an object whose `step` is given the gradients is not called. A
fault that persists ends the run.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from finitune.monitor.capture.step import Capture, MicroStep
from finitune.monitor.capture.step_calls import Calls
from finitune.monitor.compiled_step import CompiledStep, Judged
from finitune.monitor.gate import Gate
from finitune.monitor.incidents import Incidents
from finitune.monitor.live_step import LiveStep
from finitune.monitor.loop_writes import LoopWrites
from finitune.monitor.micro_steps import Pending
from finitune.monitor.optimizers import Optimizers, Watched
from finitune.monitor.probes import foreign, model_calls, optimizer_steps
from finitune.monitor.probes.gradient_versions import NO_GRADIENTS, Gradients, any_gradient, gradients_now
from finitune.monitor.probes.measurement import NOTHING_MEASURED, Reading, confirmed, measure
from finitune.monitor.probes.modules import entry_points
from finitune.monitor.probes.optimizers import BeforeStep
from finitune.monitor.probes.references import reference_to
from finitune.monitor.run import Run
from finitune.monitor.samples import WEIGHTS, all_finite
from finitune.monitor.threads import EachThread
from finitune.monitor.unchanged_weights import Unchanged
from finitune.monitor.user_code.source_line import is_running, running_objects

MOST_NODES = 50_000
"""Of the graph of one backward, when its leaves are looked for."""
UNCLAIMED = 2
"""The first backward whose gradients are no optimizer's may be copied to one, and the first derivative of data may make
a data set; from this one on the loop updates.
"""
A_SCALE = 2.0**8
"""By which a loss is multiplied to keep float16 gradients from zero; weights of terms of a loss are smaller."""
CERTAIN = 2
"""Times that the weights of an optimizer have changed between a backward and its end, while nothing stepped."""


class LoopUpdate(foreign.LeavesUpdate):
    """Stands for an optimizer where there is none."""

    @property
    def optimizer(self) -> Any:
        return self


class Intervals:
    """Backwards that belong to no optimizer."""

    def __init__(
        self,
        run: Run,
        incidents: Incidents,
        live: LiveStep,
        gate: Gate,
        optimizers: Optimizers,
        pendings: EachThread[Pending],
    ) -> None:
        self._run = run
        self._incidents = incidents
        self._live = live
        self._gate = gate
        self._optimizers = optimizers
        self._pendings = pendings
        self._writes = LoopWrites(run.modules, optimizers)
        self._update = LoopUpdate(())
        self._watched: Watched | None = None
        self._leaves: list[Tensor] = []
        self._before: Gradients = NO_GRADIENTS
        self._group: list[MicroStep] = []
        self._counted = False
        """The step of this group has a number."""
        self._asked: MicroStep | None = None
        """Of the call of `torch.autograd.grad` that runs."""
        self._of_data = False
        """It asks for the gradient of what is no parameter."""
        self._derived = Unchanged({})
        """By what a derivative of this step is derived again."""
        self._first_of_data: Judged | None = None
        self._unseen: set[int] = set()
        """Numbers of optimizers whose steps are not seen."""
        self._compiled = CompiledStep()
        self._eager_again = False
        """A watch has begun after the last backward was judged, and makes the compiled step of that one eager."""
        self._versions: dict[int, tuple[int, ...]] = {}
        """Of the weights of optimizers that were not seen to step, when the last backward ended."""
        self._doubtful: dict[int, list[Judged]] = {}
        """What was measured of optimizers of which it is not yet known whether they step unseen."""
        self._unclaimed = 0
        self._searched = 0
        self._candidates: dict[int, Callable[[], Any]] = {}
        self._ran_backward = False
        self._closure: Any = None
        """Of the trial that runs."""
        self._tried: tuple[Watched, BeforeStep] | None = None
        self._given: dict[int, Callable[[], Any]] = {}
        """Objects whose `step` was given gradients, and has written the weights."""
        self._withheld = False
        """The gradients of this step are bad, and those are not called."""

    @property
    def _pending(self) -> Pending:
        return self._pendings.get()

    @property
    def watched(self) -> list[Watched]:
        return [] if self._watched is None else [self._watched]

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        """The leaves are found in the graph, which is gone after the backward."""
        self._ran_backward = self._ran_backward or not is_running(self._closure)
        self._leaves, self._eager_again = [], False
        unseen = [watched for watched in self._optimizers if self._stepped_unseen(watched)]
        if unseen:
            self._leaves = [p for watched in unseen for p in watched.parameters()]
        elif not any(watched.steps for watched in self._optimizers):
            self._leaves = foreign.leaves_of(roots, MOST_NODES)
        before = gradients_now(self._leaves)
        if (not any_gradient(before) or before != self._before) and not self._derived.holds(self._leaves):
            self._step_missed()
            self._group, self._counted = [], False  # the gradients of the group before were set to zero, or are others

    def _stepped_unseen(self, watched: Watched) -> bool:
        """Gradients of a backward are gone that no step was seen to use: the step is compiled, or the loop's own."""
        waits = any(watched.number in micro.touched for micro in self._pending.micro_steps)
        if waits and not watched.steps and not any_gradient(watched.before_gradients):
            self._pending.dropped(watched.number)
            self._unseen.add(watched.number)
        return watched.number in self._unseen and not watched.steps

    def gradients_dropped(self, watched: Watched) -> None:
        """They are about to be set to zero, and no step was seen to use them. Where the weights have changed since the
        backward, one did, unless it was a look ahead, as of SAM: known when it happens twice and nothing has stepped.
        """
        number = watched.number
        if number in self._unseen and not watched.steps:  # judged when the backward ended
            self._step_missed()
            self._pending.dropped(number)
        if number in self._unseen or self._versions.get(number) in (None, watched.versions()) or self._steps(watched):
            return
        self._begin(watched.parameters())
        waiting = [micro for micro in self._pending.micro_steps if number in micro.touched]
        doubtful = self._doubtful.setdefault(number, [])
        doubtful.append(self._judged(waiting[-1:], watched.gradients()))
        if len(doubtful) == CERTAIN:
            self._unseen.add(number)
            for judged in doubtful:
                self._take(*judged)

    def _steps(self, watched: Watched) -> bool:
        """An optimizer of these parameters is seen to step."""
        own = {id(p) for p in watched.parameters()}
        return any(one.steps and not own.isdisjoint(map(id, one.parameters())) for one in self._optimizers)

    def backward_ended(self, micro: MicroStep) -> None:
        """Judge a backward that no step of an optimizer will be seen to use."""
        self._versions = {watched.number: watched.versions() for watched in self._optimizers if not watched.steps}
        leaves, self._leaves = self._leaves, []
        if not leaves or micro.touched - self._unseen:
            return
        if not micro.touched:
            self._look_for_optimizers(leaves)
            self._unclaimed += 1
            if len(self._optimizers) and self._unclaimed < UNCLAIMED:
                return  # an optimizer may yet step on copies of these
        self._begin(leaves)
        self._group.append(micro)
        if gradients := [leaf.grad for leaf in leaves if leaf.grad is not None]:
            judged = self._judged(self._group, gradients)
            if not self._awaits_step(judged):
                self._take(*judged)
                self._eager_again = self._live.running
        self._before = gradients_now(leaves)

    def _steps_unseen(self) -> list[Watched]:
        return [watched for watched in self._optimizers if watched.number in self._unseen]

    def _awaits_step(self, judged: Judged) -> bool:
        matters = self._live.running or (self._run.guards and judged[1].bad)
        unseen = self._steps_unseen() if matters else []
        if not unseen or not self._compiled.awaits(judged):
            return False
        for one in unseen if self._counted else ():
            one.last = self._gate.step - 1
        return True

    def _step_missed(self) -> None:
        """The step of the last backward would have come by now."""
        if (judged := self._compiled.missed()) is not None:
            self._take(*judged)

    def has_judged(self, watched: Watched) -> bool:
        """Whether the step that begins belongs to a backward that was judged by itself."""
        return self._eager_again and watched.number in self._unseen

    def step_ended(self, watched: Watched) -> None:
        """A step that was awaited was seen; the next one is compiled again."""
        if watched.number in self._unseen and self._compiled.seen():
            watched.steps = 0

    def claimed(self, watched: Watched) -> None:
        """An optimizer was made for the gradients of the first backward, which no optimizer claimed: it is its step."""
        own = self._watched
        if own is None or (own.steps, own.last) != (1, self._gate.step):
            return
        if {id(p) for p in watched.parameters()}.isdisjoint(map(id, self._update.parameters())):
            return
        own.steps, own.last, self._unclaimed, self._group = 0, 0, 0, []
        self._gate.step -= 1
        self._run.forget()

    def gradients_asked(self, calls: Calls, roots: list[Tensor], inputs: Sequence[Any], *, derived_again: bool) -> None:
        """`torch.autograd.grad` begins: a step of a loop that updates by itself, where it is no optimizer's. One whose
        result is `derived_again` is such a step where it is taken by parameters.
        """
        self._asked = None
        leaves = [t for t in inputs if isinstance(t, Tensor) and t.is_leaf]
        if derived_again and not _parameters(leaves):
            return
        own = {id(p) for watched in self._optimizers for p in watched.parameters()}
        trained = [t for t in leaves if id(t) not in own]
        if not trained or len(trained) != len(inputs) or (len(self._optimizers) and not _parameters(trained)):
            return
        roots = [root for root in roots if isinstance(root, Tensor)]
        if self._derived.holds(trained, nan_equals=not derived_again):
            trained = self._update.parameters()
        else:
            self._group = []
            self._derived = Unchanged.of(trained) if derived_again else Unchanged({})
        self._asked, self._of_data = calls.micro_step(roots), not _parameters(trained)
        self._gate.loss_seen(roots, self._asked)
        self._begin(trained)
        self._look_for_optimizers(trained)

    def gradients_returned(self, gradients: Sequence[Any]) -> None:
        """`torch.autograd.grad` has returned what was asked for last."""
        micro, self._asked = self._asked, None
        gradients = [g for g in gradients if isinstance(g, Tensor)]
        if micro is None or not gradients:
            return
        self._group.append(micro)
        judged = self._judged(self._group, gradients)
        if self._of_data:
            self._unclaimed += 1
            if self._unclaimed < UNCLAIMED:
                self._first_of_data = judged
                return
            if self._first_of_data is not None:
                self._take(*self._first_of_data)
                self._first_of_data = None
        self._take(*judged)

    def _begin(self, leaves: Sequence[Tensor]) -> None:
        self._update.holds(leaves)
        if self._watched is None:
            modules = self._run.modules
            self._watched = Watched(number=0, optimizer=weakref.ref(self._update), born=0, modules=modules)
            self._watched.stands_for(self._update)
            self._run.modules.find(leaves)
            entries = [e for root in modules.owners(leaves) for e in entry_points(root, leaves)]
            model_calls.observe_more(entries)

    def _judged(self, on: Sequence[MicroStep], gradients: Sequence[Tensor]) -> Judged:
        capture = Capture(micro_steps=list(on))
        scale = capture.scale
        weights = [p.detach() for p in self._update.parameters()]
        more = self._gate.measures.of_statistics(self._gate.step + 1)
        more |= {WEIGHTS: all_finite(weights)} if weights else {}
        measured = measure(
            self._gate.step, capture.roots, gradients, None, scale=scale, scaled=scale is not None, more=more
        )
        return capture, confirmed(measured.read(), measured)

    def _take(self, capture: Capture, reading: Reading) -> None:
        watched = self._watched
        if watched is None:
            return
        if len(capture.micro_steps) == 1:
            self._gate.step, self._counted = self._gate.step + 1, True
            watched.last, watched.steps = self._gate.step, watched.steps + 1
            for one in self._steps_unseen():
                one.last = self._gate.step
        elif watched.bad_in_a_row:
            return  # this step is known to be bad
        reading.step = self._gate.step
        watched.written_by_loop = self._update.parameters()
        live = self._live.taken()
        if reading.more.get(WEIGHTS) == 0:
            self._incidents.bad_weights(watched, reading, self._writes.made(watched.written_by_loop))
        elif not reading.bad:
            self._writes.keep(watched.written_by_loop)
        if not reading.bad:
            for one in self._steps_unseen():  # of which an earlier step may have been seen
                self._incidents.over(one, reading, capture, alone=False)
        withholds = self._run.guards and any(known() is not None for known in self._given.values())
        self._withheld = reading.skipped = reading.bad and withholds
        if reading.bad:
            by_hand = not reading.bad_loss and _is_scaled(capture)
            self._incidents.bad(
                watched, reading, capture, may_settle=by_hand, acted=self._withheld, live=live, by_hand=by_hand
            )  # fmt: skip
            if watched.bad_in_a_row and not self._withheld:
                text = f"step {reading.step}: no optimizer is stepped here, so a bad update cannot be discarded"
                self._run.speech.once("no step", text)
        self._gate.finish(watched, reading, capture)

    # Optimizers of other classes.

    def withholds(self, thing: Any) -> bool:
        """Whether the `step` of this object is not to be called: it would be given gradients that are bad."""
        return self._withheld and self._given.get(id(thing), lambda: None)() is thing

    def _look_for_optimizers(self, leaves: Sequence[Tensor]) -> None:
        """At the 1st, 2nd, 4th, 8th... of such backwards: objects with a `step` that hold these leaves."""
        self._searched += 1
        if self._searched & (self._searched - 1):
            return
        running = running_objects()
        for thing in foreign.find(leaves):
            if id(thing) not in running and self._optimizers.get(thing) is None:
                self._candidates[id(thing)] = reference_to(thing)
                optimizer_steps.observe_class(type(thing))

    @contextlib.contextmanager
    def trial(self, thing: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """Around a call of the `step` of an object: it is an optimizer if it writes to leaves and runs no backward but
        in the closure that it was given; then only where its step can be taken back. One that is given the gradients
        has none of its own.
        """
        known = self._candidates.pop(id(thing), lambda: None)()
        if self._update.parameters() and _are_gradients(pytree.tree_leaves((args, kwargs)), self._update.parameters()):
            versions = [p._version for p in self._update.parameters()]
            yield
            if versions != [p._version for p in self._update.parameters()]:
                self._given[id(thing)] = reference_to(thing)
            return
        if known is not thing:
            yield
            return
        closure = optimizer_steps.closure_in(args, kwargs)
        update = foreign.ForeignUpdate(thing)
        parameters = update.parameters()
        before = [_look(p) for p in parameters]
        self._ran_backward, self._closure = False, closure
        kept = update.before_step()
        can = closure is None or kept is not None
        try:
            yield
        finally:
            self._closure = None
        wrote = any(not torch.equal(_look(p), was) for p, was in zip(parameters, before, strict=True))
        if wrote and can and not self._ran_backward:
            watched = self._optimizers.add(thing, born=self._gate.step, modules=self._run.modules)
            watched.last, watched.steps = self._gate.step, 1
            self._run.modules.find(parameters)
            self._pending.clear()
            self._tried = None if kept is None else (watched, kept)

    def trial_ended(self) -> None:
        """What was found to be an optimizer has made its first step: what that has spoilt is taken back as well."""
        tried, self._tried = self._tried, None
        if tried is not None and self._run.guards:
            watched, kept = tried
            reading = replace(NOTHING_MEASURED, step=self._gate.step)
            self._gate.undo_spoilt(watched, reading, list(self._group), kept)


def _are_gradients(given: Sequence[Any], weights: Sequence[Tensor]) -> bool:
    """A tensor of the shape of each weight."""
    shapes = Counter(tuple(one.shape) for one in given if isinstance(one, Tensor))
    return not Counter(tuple(weight.shape) for weight in weights) - shapes


def _is_scaled(capture: Capture) -> bool:
    """Every loss is multiplied with a large number of the loop's own: whoever does that skips what overflows."""
    return all(m.objective is not None and abs(m.objective.factor) >= A_SCALE for m in capture.micro_steps)


def _look(parameter: Tensor) -> Tensor:
    return parameter.detach().reshape(-1)[:8].clone()


def _parameters(tensors: Sequence[Tensor]) -> bool:
    return any(isinstance(tensor, nn.Parameter) for tensor in tensors)
