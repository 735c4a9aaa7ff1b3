"""One earlier batch with the loss it had, to tell a model that diverges from data that changed."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from finitune.chapter import Sighting
from finitune.monitor.capture.carried_state import Carried
from finitune.monitor.capture.settings import as_set, settings_of
from finitune.monitor.capture.step import Call, Capture
from finitune.monitor.loss_graph.objective import Objective
from finitune.monitor.loss_graph.output_losses import is_output, is_sum_of_output
from finitune.monitor.loss_graph.term_weights import is_weighted_otherwise
from finitune.monitor.probes.surroundings import randomness_kept
from finitune.monitor.replay.rerun import Setting, losses_of
from finitune.monitor.run import MOST_VALUES
from finitune.outliers import beginning, level_at_beginning, median
from finitune.series import Series, Signals, usual_low
from finitune.symptoms.divergence import BEYOND, VERY_FAR

RISE = 1.3
"""A damaged model has a loss on an earlier batch this many times the one it had then; so far may the factors of terms
move before a loss is another one.
"""
ASK_EVERY = 32
AGAIN = 8
"""Steps after which a divergence of which nothing was proved is looked at once more: its batch may have been odd."""
OF_DATA = ("loss", "grad_norm")
"""Signals that have another level where the data are others."""
JUMP, LEVEL = 3.0, 16
"""A loss this many times the largest of so many steps before has jumped."""


NO_MODULE = nn.Module()
"""In the place of one that is called in a batch that is kept, and may be replaced by the loop."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A micro-batch, which keeps no model alive."""

    step: int
    capture: Capture
    """Without the modules that were called."""
    loss: float
    modules: Sequence[weakref.ref[nn.Module]] = ()
    settings: Sequence[Carried] = ()
    """What its model was set to in it."""

    @staticmethod
    def of(step: int, capture: Capture, loss: float, gone: Callable[[Any], None]) -> Kept:
        """`gone` is called when one of its modules is collected."""
        modules = [call.module for micro in capture.micro_steps for call in micro.calls]
        return Kept(
            step, _with_modules(capture, [NO_MODULE] * len(modules)), loss,
            [weakref.ref(module, gone) for module in modules], settings_of(modules),
        )  # fmt: skip

    def batch(self) -> Capture | None:
        """With its modules; None where one is gone."""
        modules = [found for module in self.modules if (found := module()) is not None]
        return _with_modules(self.capture, modules) if len(modules) == len(self.modules) else None


class EarlierBatch:
    """Keeps references to one micro-batch of an earlier step: of the first, then of ever rarer ones. A model that the
    loop replaces is not kept alive by it.
    """

    def __init__(self) -> None:
        self._kept: Kept | None = None
        self._next = 1
        self._asked = -ASK_EVERY
        self._asked_of: Sighting | None = None
        self._reported, self._level = 0.0, 0.0
        """The loss of the divergence that was reported last, and the level that the run had left."""
        self._again = True
        self._fresh: dict[str, Series] = {}
        """What the data decide, since the data changed: the loss rose, while an earlier batch had the loss it had; or
        since the loop has weighed the terms of its loss in another way.
        """

    @property
    def step(self) -> int:
        return self._kept.step if self._kept else 0

    def keep(self, step: int, capture: Capture, losses: tuple[float, ...], loss: Series) -> None:
        """Remember the first micro-batch of this step if its turn has come and its loss is finite and above 0, so that
        it can rise. One whose loss is on its way up is not kept: beside it a loss that climbs further is no rise. Where
        one cannot be kept, the next is tried an eighth of the steps later.
        """
        if step < self._next or not losses or not 0 < losses[0] < math.inf:
            return
        low = usual_low(loss.window(len(loss)))
        if low is not None and losses[0] > JUMP * low:
            return
        self._next = step + max(1, step // 8)
        one = Capture(micro_steps=capture.micro_steps[:1])
        objectives = [micro.objective for micro in one.micro_steps if micro.objective is not None]
        for objective in objectives:
            objective.look_up_constants(cheap=False)  # which is done ever more rarely
        if one.runnable is None and all(objective.knows_constants for objective in objectives):
            self._kept, self._next = Kept.of(step, one, losses[0], self._forget), 2 * step

    def batch(self) -> Capture | None:
        """The one that is kept; None where there is none."""
        return self._kept.batch() if self._kept is not None else None

    def _forget(self, _: object = None) -> None:
        """It is of another model, or of another loss."""
        self._kept, self._next = None, 0

    def asked_at(self, step: int, seen: Sighting) -> bool:
        """True when the question was put only a few steps ago: not where it is a suspicion now what was a note, or the
        loss has run away and nothing was reported of it.
        """
        last = self._asked_of
        if last is not None and step - self._asked < ASK_EVERY:
            graver = seen.level == "suspicion" and last.level == "note"
            away = not self._reported and seen.numbers["loss"] > VERY_FAR * last.numbers["loss"] > 0
            if not graver and not away:
                return True
        self._asked, self._asked_of = step, seen
        return False

    def judged(self, signals: Signals, model: nn.Module | None, capture: Capture) -> Signals:
        """The signals as symptoms should see them after the newest step, which `capture` holds: those of the data since
        the data changed.

        Where the loss jumps, an earlier batch says at once whether the weights or the data have changed.
        """
        step = signals["loss"].last_step
        if self._reported and signals["loss"].last <= self._level:
            self._reported, self._asked = 0.0, -ASK_EVERY
        if is_beyond_data(signals["loss"]):
            return signals
        jump = self._jump(signals["loss"])
        damaged = None
        if jump is not None and not self.is_of_another_loss(capture):
            damaged = self.is_damaged(model, math.sqrt(jump))
        if damaged is False:
            self._begin_anew()
        elif damaged:  # a loss of such weights measures nothing later on
            self._next = max(self._next, step + LEVEL)
        for name, fresh in self._fresh.items():
            if signals[name].last_step == step:
                fresh.add(step, signals[name].last)
        return {**signals, **self._fresh}

    def is_of_another_loss(self, capture: Capture) -> bool:
        """The loop weighs the terms of its loss in another way than in the step that is kept, of which the present loss
        is no rise. What is judged begins anew, and another batch is kept.
        """
        now, then = _objective(capture), _objective(self._kept.capture) if self._kept else None
        if now is None or then is None or not is_weighted_otherwise(now, then, far=RISE):
            return False
        self._forget()
        self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        self._fresh = {name: Series(most=MOST_VALUES) for name in OF_DATA}

    def _jump(self, loss: Series) -> float | None:
        """By how much the loss leaves its level at its newest step, None where it does not."""
        # A loss of exactly 0 is one of nothing, as of a batch without labels.
        before = [value for value in loss.window(LEVEL, before=1) if math.isfinite(value) and value]
        if len(before) < 2 or not min(before) > 0:
            return None
        return loss.last / max(before) if loss.last > JUMP * max(before) else None

    def speaks_of(self, loss: Series, seen: Sighting) -> bool:
        """Whether the batch is a fair measure of the model: its targets are classes. Those of a value function are made
        by the model itself and of another time, and its loss may rise a hundredfold as rewards are found.
        """
        if seen.numbers["loss"] > VERY_FAR * _began_at(loss):
            return True
        objective = _objective(self._kept.capture) if self._kept else None
        if self._kept is None or objective is None:
            return False
        calls = self._kept.capture.micro_steps[0].calls
        of_tokens = is_sum_of_output(objective) and any(map(_has_labels, calls))
        of_model = is_output(objective) and any(map(_is_given_classes, calls))
        return bool(objective.targets) or of_tokens or of_model

    def is_news(self, loss: float, before: float) -> bool:
        """True for the first divergence from the level `before`, for the first after the loss was back there, and for
        one that goes as far beyond the last as that is distinguished from noise.
        """
        if not loss > JUMP * self._reported:
            return False
        self._reported, self._level = loss, before
        return True

    def ask_again(self) -> None:
        """Nothing was proved on this step: look once more, at a later one."""
        if self._again:
            self._again, self._reported = False, 0.0
            self._asked += AGAIN - ASK_EVERY

    def lost(self, loss: Series, seen: Sighting) -> float | None:
        """How many times its own the loss of the earlier batch must be for a rise to be a divergence; None for one that
        swings about zero, of which no ratio tells.

        As far as the run's rose, but for what other data may spoil (see `is_damaged`); and where the loss is not back
        where it began, all that was learned of that batch: Adam near a minimum jumps now and then to many times its
        level, and comes back.
        """
        if "swings" in seen.numbers:
            return None
        rise = seen.numbers["loss"] / seen.numbers["before"] if seen.numbers["before"] > 0 else 1.0
        own = loss.at(self.step) if seen.level == "note" and self.step else math.nan
        return max(math.sqrt(max(rise, 1.0)), _began_at(loss) / own if own > 0 else 1.0)

    @randomness_kept()
    def is_damaged(self, model: nn.Module | None, times: float | None = RISE) -> bool | None:
        """Whether the loss of the earlier batch on the present weights is more than `times` what it was, and `RISE`;
        None where it cannot be run, or `times` is not known.

        Where the loss rose because of the weights, the earlier batch's rose alike; other data that the model learns
        from may spoil what it knew by a smaller factor, less than the square root of that rise.
        """
        if self._kept is None or model is None or times is None:
            return None
        capture, loss, settings = self.batch(), self._kept.loss, self._kept.settings
        if capture is None or capture.runnable is not None:
            return None
        try:
            with torch.no_grad(), as_set(settings):
                now = sum(losses_of(Setting(model=model, capture=capture)))
        except Exception:
            return None
        return not math.isfinite(now) or now / loss > max(RISE, times)


def _with_modules(capture: Capture, modules: Sequence[nn.Module]) -> Capture:
    """One for each call, in their order; without the calls that these have made of others."""
    left = iter(modules)
    return Capture(micro_steps=[
        replace(micro, calls=[replace(call, module=next(left), within=[]) for call in micro.calls])
        for micro in capture.micro_steps
    ])  # fmt: skip


def _objective(capture: Capture) -> Objective | None:
    """Of its first micro-step, the only one of a batch that is kept."""
    return capture.micro_steps[0].objective if capture.micro_steps else None


def _is_given_classes(call: Call) -> bool:
    """It computes the loss itself, of whole numbers under the name of labels, or of nothing else, as `model(x, y)`."""
    given = [tensor for tensor, _ in call.versions]
    return _has_labels(call) or (len(given) > 1 and not any(tensor.is_floating_point() for tensor in given))


def _has_labels(call: Call) -> bool:
    labels = call.kwargs.get("labels")
    return isinstance(labels, torch.Tensor) and not labels.is_floating_point()


def _began_at(loss: Series) -> float:
    return max(median(beginning(loss)), level_at_beginning(loss))


def is_beyond_data(loss: Series) -> bool:
    """Whether the newest loss is so far beyond where the run began that no other data make it, however well those of
    before are still known: what it compares the model with may have run away.
    """
    return loss.last > BEYOND * _began_at(loss)
