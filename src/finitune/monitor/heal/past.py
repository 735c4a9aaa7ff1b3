"""The last steps of one optimizer: their batches by reference, and now and then a copy of weights and optimizer state.

From such a copy the steps since can be taken again, with another learning rate. Kept in mode `heal` only, for what is
small beside the free memory: adapters, small models. Under ZeRO 1 and 2 each rank keeps its own part of the state, and
DeepSpeed's own step clips and gathers when steps are taken again. Each is taken with the loss scale that it had, and
without it changes none. No random number is drawn and no tensor of the run is
written to, unless a remedy asks for it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from finitune.monitor.capture.step import Capture
from finitune.monitor.heal.averaging import averaged
from finitune.monitor.heal.bounds import Bound, Shrink, bound_of
from finitune.monitor.heal.scaled_gradients import unscaled, why_not_unscaled, without_scale
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.deepspeed import (
    forget_views,
    gathered,
    is_partitioned,
    put_in_parts,
    steps_by_hand,
    trained_by,
)
from finitune.monitor.probes.finite import is_finite
from finitune.monitor.probes.measurement import Reading, Unclipped
from finitune.monitor.probes.modules import device_of
from finitune.monitor.probes.optimizer_steps import hooks_before
from finitune.monitor.probes.optimizers import parameters_of
from finitune.monitor.probes.ranks import ALONE, Group
from finitune.monitor.probes.update import why_not_by_hand
from finitune.monitor.replay.limits import free_bytes
from finitune.monitor.replay.rerun import Setting, gradients

EVERY, STATES = 8, 3
"""A state is copied every so many steps, and so many are kept: 16 to 24 steps can be taken again."""
SHARE = 0.1
"""Of the free memory, for all that is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Weights and optimizer state, copied. Hyperparameters belong to the schedule of the loop.

    Of ZeRO 1 and 2 it is what this rank holds: its part of both, and all weights that the model computes with.
    """

    weights: list[Tensor]
    entries: list[dict[str, Any]]
    """Per parameter, empty where the optimizer has none yet."""

    @staticmethod
    def of(optimizer: Any) -> State:
        own = parameters_of(optimizer)
        return State(
            weights=[p.detach().clone() for p in (*own, *gathered(optimizer))],
            entries=[copy.deepcopy(optimizer.state[p]) if p in optimizer.state else {} for p in own],
        )

    @property
    def nbytes(self) -> int:
        entries = (t for each in self.entries for t in each.values() if isinstance(t, Tensor))
        return sum(t.nbytes for t in (*self.weights, *entries))

    @torch.no_grad()
    def restore(self, optimizer: Any) -> None:
        """Bit for bit."""
        own = parameters_of(optimizer)
        for p, weight in zip((*own, *gathered(optimizer)), self.weights, strict=True):
            p.detach().copy_(weight)
        for p, entries in zip(own, self.entries, strict=True):
            if entries:
                optimizer.state[p] = _written(optimizer.state.get(p, {}), entries)
            elif optimizer.state.pop(p, None):
                forget_views(optimizer)


def _written(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """`before`, in the tensors that are there `now`: DeepSpeed gives each parameter a view of its part of them."""
    there = {name: value for name, value in now.items() if _is_like(value, before.get(name))}
    return {name: there[name].copy_(value) if name in there else copy.deepcopy(value) for name, value in before.items()}


def _is_like(value: Any, other: Any) -> bool:
    both = isinstance(value, Tensor) and isinstance(other, Tensor)
    return both and (value.shape, value.dtype, value.device) == (other.shape, other.dtype, other.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One step that was taken: its batch, the norm it was clipped to, its rates, and maybe the state before it."""

    step: int
    capture: Capture
    scale: float
    """By which its losses were multiplied."""
    max_norm: float | None
    rates: list[float]
    before: State | None
    bound: Bound | None = None
    """As it was before that step."""


@dataclass(slots=True, kw_only=True)
class Past:
    """The newest steps, oldest first; the first of them has a state."""

    steps: list[Taken] = field(default_factory=list[Taken])
    why_not: str | None = None
    """Why nothing is kept."""
    factor: float = 1.0
    """By which a remedy multiplies the learning rate of every step, whatever the schedule of the loop makes it."""
    most: float = 1.0
    """To which the factor may come back; below 1 where the run diverged a second time."""
    group: Group = ALONE
    """The other ranks wait to take steps again together with this one (`heal.together.assisted`)."""
    raise_at: int = 0
    waits: int = 0
    """The step from which a higher factor is tried, and how many steps were waited for it (`heal.rewarm`)."""
    own_rates: list[float] | None = None
    """Those of the step that runs now, without the factor."""
    skips: int = 0
    """How often a remedy has left steps out."""
    bound: Bound | None = None
    """With which a remedy bounds every step."""
    bound_before: Bound | None = None
    """The same before the step that runs now."""

    def slow_down(self, optimizer: Any) -> None:
        """A step is about to run."""
        self.as_scheduled(optimizer)
        self.bound_before = copy.deepcopy(self.bound)
        if self.bound is not None:
            gradients = [p.grad for p in trained_by(optimizer)]
            with without_scale(optimizer, gradients):
                self.bound.before(optimizer, gradients)
        if self.factor != 1.0:
            self.own_rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * self.factor

    def is_over(self, optimizer: Any) -> None:
        """It has been taken."""
        if self.bound is not None:
            self.bound.after(optimizer)
        self.as_scheduled(optimizer)

    def as_scheduled(self, optimizer: Any) -> None:
        """The schedule finds the rates that it set."""
        rates, self.own_rates = self.own_rates, None
        if rates is not None:  # an optimizer of the user's own may have no groups
            for group, rate in zip(optimizer.param_groups, rates, strict=False):
                group["lr"] = rate

    def keep(self, watched: Watched, reading: Reading, capture: Capture, clip: Unclipped | None) -> None:
        """A step with finite gradients is about to be taken."""
        optimizer: Any = watched.optimizer()
        step = reading.step
        self.why_not = _why_not(watched, capture, clip)
        if self.why_not is not None:
            self.steps = []
            return
        for micro in capture.micro_steps:
            if micro.objective is not None:
                micro.objective.look_up_constants()
        due = not self.steps or step - max(one.step for one in self.steps if one.before is not None) >= EVERY
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.steps.append(Taken(
            step=step, capture=Capture(micro_steps=list(capture.micro_steps)), scale=reading.scale, rates=rates,
            max_norm=clip.max_norm if clip is not None else None, before=State.of(optimizer) if due else None,
            bound=self.bound_before,
        ))  # fmt: skip
        with_state = [place for place, one in enumerate(self.steps) if one.before is not None]
        if len(with_state) > STATES:
            del self.steps[: with_state[1]]

    def newest(self) -> Past:
        """What is kept from the newest state on: the fewest steps that can be taken again."""
        places = [place for place, one in enumerate(self.steps) if one.before is not None]
        return replace(self, steps=self.steps[places[-1] :] if places else [])

    def take_again(
        self, setting: Setting, times: float, since: int = 0, *, bound: str = "", skipped: Collection[int] = (),
        group: Group = ALONE,
    ) -> Bound | None:  # fmt: skip
        """From the oldest state on, every step once more, but for those of `skipped`; those from step `since` on with
        their rate times `times`. `bound`, as `bound_of` spells it, bounds each of them; it is returned as it then is.

        With a `group` all of its ranks call this alike, and gradients are averaged over it as in the run; without, a
        rank takes the steps on its own batches alone. Weights and optimizer state are those after it; who calls this
        keeps what was there. Raises ValueError where nothing is kept, and what the model raises.
        """
        if not self.steps or self.steps[0].before is None:
            raise ValueError(self.why_not or "no earlier step is kept")
        unlike = (times != 1.0 or bool(bound) or bool(skipped)) and not self._knows_constants
        if group.agree(unlike, device=device_of(setting.model))[0]:
            self.take_again(setting, 1.0, group=group)  # constants of a loss are found in a step as it was
        optimizer, new = setting.optimizer, bound_of(bound)
        if isinstance(new, Shrink) and is_partitioned(optimizer):
            raise ValueError("no rank steps a whole tensor")
        rates = [group["lr"] for group in optimizer.param_groups]
        held = [(p, p.grad) for p in trained_by(optimizer)]
        self.steps[0].before.restore(optimizer)
        try:
            with steps_by_hand(optimizer):
                for one in self.steps:
                    if one.step in skipped:
                        continue
                    _take(setting, one, times if one.step >= since else 1.0, new or copy.deepcopy(one.bound), group)
        finally:
            for entries, rate in zip(optimizer.param_groups, rates, strict=True):
                entries["lr"] = rate
            for p, gradient in held:
                p.grad = gradient
        return new

    @property
    def _knows_constants(self) -> bool:
        objectives = [micro.objective for one in self.steps for micro in one.capture.micro_steps]
        return all(objective is None or objective.knows_constants for objective in objectives)

    def take_together(
        self, setting: Setting, times: float, since: int, bound: str, skipped: Collection[int]
    ) -> None:  # fmt: skip
        """The same by all ranks that wait for it, or by this process alone."""
        if self.group.size > 1:
            order = {
                "times": times, "since": since, "bound": bound, "skipped": sorted(skipped),
                "steps": [one.step for one in self.steps],
            }  # fmt: skip
            with _disable_current_modes():  # what refuses a model's own collectives is not meant for these
                self.group.text(json.dumps(order), self.group.rank, device_of(setting.model))
                self.take_as_ordered(setting, order)
        else:
            self.take_again(setting, times, since, bound=bound, skipped=skipped)

    def take_as_ordered(self, setting: Setting, order: Mapping[str, Any]) -> Bound | None:
        """What one rank has ordered, on each rank alike; raises on all where one cannot."""
        mine = [one.step for one in self.steps] == order["steps"] and bool(self.steps)
        if setting.group.agree(not mine, device=device_of(setting.model))[0]:
            raise ValueError("the ranks do not keep the same steps")
        return self.take_again(
            setting, order["times"], order["since"], bound=order["bound"], skipped=order["skipped"],
            group=setting.group,
        )  # fmt: skip

    def gives_finite(self, setting: Setting) -> bool | None:
        """Whether the newest steps, taken again at their own rate, leave every weight finite; None: not known."""
        if setting.group.size > 1:
            return None  # one rank alone has a part of their gradients
        try:
            with self.newest().again(setting, 1.0):
                return all(map(is_finite, parameters_of(setting.optimizer)))
        except Exception:  # nothing kept, a batch that was changed since, no time left
            return None

    @contextmanager
    def before(self, setting: Setting) -> Iterator[None]:
        """Weights and optimizer state of before the oldest step, for the time of one run; raises as `take_again`."""
        if not self.steps or self.steps[0].before is None:
            raise ValueError(self.why_not or "no earlier step is kept")
        now = State.of(setting.optimizer)
        self.steps[0].before.restore(setting.optimizer)
        try:
            yield
        finally:
            now.restore(setting.optimizer)

    @contextmanager
    def again(
        self, setting: Setting, times: float, since: int = 0, *, bound: str = "", skipped: Collection[int] = ()
    ) -> Iterator[None]:  # fmt: skip
        """The same for the time of one run of the captured step."""
        before = State.of(setting.optimizer)
        if setting.group.size > 1 and self.group.size == 1:
            raise ValueError("the other ranks do not take part")
        try:
            self.take_together(setting, times, since, bound, skipped)
            yield
        finally:
            before.restore(setting.optimizer)


def _take(setting: Setting, one: Taken, times: float, bound: Bound | None, group: Group) -> None:
    optimizer = setting.optimizer
    found = averaged(group, trained_by(optimizer), lambda: _gradients(setting, one))
    pairs = [(p, unscaled(gradient, one.scale)) for p, gradient in found]
    parted = is_partitioned(optimizer)
    for p, gradient in pairs if not parted else ():
        p.grad = gradient
    if one.max_norm is not None and not parted:
        torch.nn.utils.clip_grad_norm_([p for p, _ in pairs], one.max_norm)
    for entries, rate in zip(optimizer.param_groups, one.rates, strict=True):
        entries["lr"] = rate * times
    if bound is not None:
        of = {id(p): gradient for p, gradient in pairs}
        bound.before(optimizer, [of.get(id(p)) for p in trained_by(optimizer)])
    if parted:
        put_in_parts(optimizer, pairs)
    optimizer.step()
    if parted and optimizer.overflow:
        raise ValueError("gradients of a step that is taken again are not finite")
    if bound is not None:
        bound.after(optimizer)
    for p, _ in pairs:
        p.grad = None


def _gradients(setting: Setting, one: Taken) -> dict[int, Tensor | None]:
    """By the identity of their parameter. Raises ValueError where the step cannot be run again."""
    setting.limits.check()
    if one.capture.runnable is not None:
        raise ValueError(one.capture.runnable)
    return {id(p): g for p, g in gradients(replace(setting, capture=one.capture, run_scale=None))}


def _why_not(watched: Watched, capture: Capture, clip: Unclipped | None) -> str | None:
    optimizer: Any = watched.optimizer()
    model = watched.model
    group = watched.group
    if group.split or not group.known:
        return "the ranks hold parts of the model, or their group is not known"
    if (why := why_not_by_hand(watched.update)) is not None:
        return why
    if watched.before is not None:
        return "the loop's own closure takes part in each step"
    if (why := why_not_unscaled(capture, clip)) is not None:
        return why
    if model is None or capture.runnable is not None or (clip is not None and clip.max_norm is None):
        return capture.runnable or "the steps of this loop cannot be taken again"
    if hooks_before(getattr(optimizer, "optimizer", optimizer)):
        return "hooks on the optimizer's step take part in each step"
    if any(isinstance(group["lr"], Tensor) for group in optimizer.param_groups):
        return "the learning rate lies on the device"
    own, entries = parameters_of(optimizer), [optimizer.state.get(p, {}) for p in parameters_of(optimizer)]
    held = (t for each in entries for t in each.values() if isinstance(t, Tensor))
    tensors = [*own, *gathered(optimizer), *held]
    state = max(sum(t.nbytes for t in tensors), 3 * sum(p.nbytes for p in own))
    needed, free = STATES * state + EVERY * STATES * capture.nbytes, free_bytes(device_of(model))
    if free is not None and needed > SHARE * free:
        return f"weights and state of {STATES} steps take {needed / 2**30:.1f} GiB, over {SHARE:.0%} of what is free"
    return None
