"""Ranks that train one model alike do the same to it: one rank decides, and all of them do as it says, or none does.

Every method that talks to the others is called by all ranks of the group at the same place: after a bad step, whose
verdict they share.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from finitune.monitor.capture.step import Capture
from finitune.monitor.heal.cure import Now, Unable, Undo
from finitune.monitor.heal.past import Past, State
from finitune.monitor.heal.step_again import take_back
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.modules import device_of
from finitune.monitor.probes.ranks import ALONE
from finitune.monitor.probes.surroundings import randomness_kept
from finitune.monitor.replay.rerun import Setting


def may_act(watched: Watched) -> bool:
    """Every rank holds the whole model, and the group is known; optimizer state may be in parts, as in ZeRO 1 and 2."""
    group = watched.group
    return group.known and not group.split and watched.model is not None


def who_decides(watched: Watched, wants: bool) -> int | None:  # noqa: FBT001
    """The first rank that has something to say; None where none has."""
    return watched.group.first(wants, device_of(watched.model))


@contextmanager
def assisted(watched: Watched, speaker: int | None) -> Iterator[None]:
    """While one rank, the `speaker`, runs the block, the others take steps again with it whenever it orders them to;
    they come to the block when it has left it.
    """
    group, past, device = watched.group, watched.past, device_of(watched.model)
    if speaker is None or group.size == 1 or not may_act(watched):
        yield
        return
    if group.rank != speaker:
        while order := group.text("", speaker, device):
            _assist(watched, json.loads(order))
        yield
        return
    if past is not None:
        past.group = group
    try:
        yield
    finally:
        if past is not None:
            past.group = ALONE
        group.text("", speaker, device)


def _assist(watched: Watched, order: Mapping[str, Any]) -> None:
    """Take the steps as ordered, and be as before. What fails is raised on the rank that ordered it."""
    assert watched.model is not None
    past, optimizer = watched.past or Past(), watched.optimizer()
    before = State.of(optimizer)
    last = past.steps[-1].capture if past.steps else Capture()
    setting = Setting(model=watched.model, optimizer=optimizer, capture=last, group=watched.group)
    with randomness_kept(), suppress(Exception):
        past.take_as_ordered(setting, order)
    before.restore(optimizer)


def decided(watched: Watched, rank: int, decide: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """What that rank decides, on every rank. What fails while it decides is a decision for nothing."""
    text = ""
    error: Exception | None = None
    with assisted(watched, rank):
        if watched.group.rank == rank:
            try:
                text = json.dumps(decide())
            except Exception as raised:
                error = raised
    text = watched.group.text(text, rank, device_of(watched.model))
    if error is not None:
        raise error
    return json.loads(text) if text else {}


@randomness_kept()
def done_together(now: Now, module: ModuleType, orders: Mapping[str, Any]) -> tuple[bool, Undo | None]:
    """What one rank has decided, on every rank; taken back, and False, where one of them could not. The undo is None
    where nothing but the step is changed.
    """
    watched, for_its_step = now.watched, hasattr(module, "repeat_step")
    undo: Undo | None = None
    error: Exception | None = None
    try:
        if for_its_step:
            module.repeat_step(now, orders)
        else:
            undo = module.repeat(watched, orders)
    except Exception as raised:
        error = raised
    (failed,) = watched.group.agree(error is not None, device=device_of(watched.model))
    if failed and for_its_step:
        take_back(now)  # where one rank discards it, no other may leave it to DeepSpeed
    elif failed and undo is not None:
        undo()
    if error is not None and not isinstance(error, Unable):
        raise error
    return not failed, None if failed else undo
