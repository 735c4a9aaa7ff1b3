"""The loss scale gets the room that it lacks: a lower floor, a longer wait before it grows, or a lower fixed value.

Needs: a scaler that can be reached, that of DeepSpeed, torch's GradScaler or an optimizer that scales by itself; and a
captured step that is finite at a lower scale and not at its own. Price: nothing; with a longer wait the scale comes
back more slowly after it fell. Undo: the scaler keeps what it kept before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from finitune.monitor.capture.loss_scalers import LossScaler, scaler_of
from finitune.monitor.capture.step import Capture
from finitune.monitor.heal.cure import Case, Change, Cure, Unable
from finitune.monitor.heal.undo import Undo, of_all
from finitune.monitor.optimizers import Watched
from finitune.monitor.replay.rerun import Setting

action = "healed"
FLOOR = 1.0
"""Below it the scale would make gradients smaller than they are."""
WINDOW = 1000
"""DeepSpeed's own; torch's GradScaler waits 2000."""
ROOM = 4
"""A fixed scale is set so many times below the one that the step bears: later steps may need a little less."""
OCTAVES = 24
"""From 2**24 down to 1 there is no scale that is not looked at."""


def cure(case: Case) -> Cure:
    """Raises Unable."""
    scaler = scaler_of(case.watched.optimizer(), case.inquiry.capture)
    if scaler is None:
        raise Unable("what scales the loss could not be reached")
    own = case.reading.scale
    borne = next((s for s in (own / 2**n for n in range(1, OCTAVES + 1)) if s >= FLOOR and case.finite(_at(s))), None)
    if borne is None:
        raise Unable("no lower loss scale makes the step finite")
    orders, text, patch = _orders(scaler, own, borne)
    return Cure(
        text=text,
        price="",
        targets=frozenset(f"loss scale's {what} {value:g}" for what, value in orders.items()),
        change=_at(borne),
        placebo=_at(own),
        instead=f"its own scale, {own:g}",
        apply=lambda: _applied(scaler, orders),
        orders=orders if scaler_of(case.watched.optimizer(), Capture()) is not None else None,
        patch=patch,
    )


def repeat(watched: Watched, orders: Mapping[str, Any]) -> Undo:
    """The same in the scaler that the optimizer of every rank carries."""
    scaler = scaler_of(watched.optimizer(), Capture())
    assert scaler is not None
    return _applied(scaler, orders)


def _orders(scaler: LossScaler, own: float, borne: float) -> tuple[Mapping[str, float], str, Mapping[str, Any]]:
    """What is set to what, in words, and for the user's files."""
    floor, window = scaler.get("floor"), scaler.get("window")
    if not scaler.dynamic:
        room = max(borne / ROOM, FLOOR)
        text = f"the loss scale is {room:g} from now on (it was fixed at {own:g}; the step bears {borne:g})"
        return {"scale": room}, text, {"fp16.loss_scale": 0, "fp16.min_loss_scale": 1}
    if floor is not None and own <= floor:
        text = f"the loss scale is {borne:g} and may fall to {FLOOR:g} (its floor was {floor:g})"
        return {"floor": FLOOR, "scale": borne}, text, {"fp16.min_loss_scale": 1}
    if window is not None and window < WINDOW:
        text = f"the loss scale waits for {WINDOW} finite steps before it grows (it was {window:g})"
        return {"window": WINDOW}, text, {"fp16.loss_scale_window": WINDOW}
    raise Unable("the loss scale has the room that it needs")


def _applied(scaler: LossScaler, orders: Mapping[str, float]) -> Undo:
    return of_all(scaler.put(what, value) for what, value in orders.items())


def _at(scale: float) -> Change:
    @contextmanager
    def changed(setting: Setting) -> Iterator[None]:
        setting.run_scale = scale
        yield

    return changed
