"""What a batch held when the program died: ids beyond the embedding, labels beyond the classes, what is not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from finitune.monitor.capture.step import Call
from finitune.monitor.probes.finite import is_finite, places
from finitune.monitor.probes.out_of_range import Flags
from finitune.monitor.probes.padding import IGNORED_LABEL
from finitune.monitor.user_code.frame_variables import locals_of

MOST_INPUTS = 8
"""Whose sizes are said of one call."""


def facts_of_batch(calls: Sequence[Call], vocabulary: int | None) -> list[dict[str, Any]]:
    """Of the calls since the last step, the newest first: each fact with its sample and position, from 0."""
    facts: list[dict[str, Any]] = []
    for call in reversed(calls):
        given = list(call.named_inputs())
        for name, tensor in given:
            fact = _fact(name, tensor, vocabulary) if tensor.device.type == "cpu" else None
            if fact is not None:
                facts.append(fact)
        facts += [flag for flag in Flags.read(call) if flag]
        if given:
            facts.append({"inputs": {name: f"{_dtype(t)} {list(t.shape)}" for name, t in given[:MOST_INPUTS]}})
        if len(facts) > 1:
            return facts
    return facts


def facts_of_frames(frames: Sequence[FrameType]) -> list[dict[str, Any]]:
    """What a function of torch that raised was called with: the first label that is no class, or id that is no row; and
    the learning rate of an optimizer that raised, where it can be none.

    `frames` are those of the traceback. Nothing is read of tensors on an accelerator, which may be lost.
    """
    called = [f for f in frames if f.f_globals.get("__name__") == "torch.nn.functional"]
    stepped = [own for f in frames if isinstance(own := locals_of(f).get("self"), Optimizer)]
    found = [_fact_of_call(frame.f_code.co_name, locals_of(frame)) for frame in called[-1:]]
    found += [_fact_of_rate(optimizer) for optimizer in stepped[-1:]]
    return [fact for fact in found if fact is not None]


def _fact_of_rate(optimizer: Optimizer) -> dict[str, Any] | None:
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if isinstance(rate, complex) or (isinstance(rate, float | int) and not 0 <= rate < math.inf):
            return {"learning_rate": f"{rate:g}", "optimizer": type(optimizer).__name__}
    return None


def _fact_of_call(function: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
    ids, rows, of, ignored = None, 0, "", None
    first, second = given.get("input"), given.get("weight" if function == "embedding" else "target")
    if not isinstance(first, Tensor) or not isinstance(second, Tensor) or not first.dim():
        return None
    if function == "embedding":
        ids, rows, of = first, len(second), "rows"
    elif function in ("cross_entropy", "nll_loss") and not second.is_floating_point():
        ids, rows, of, ignored = second, first.shape[min(1, first.dim() - 1)], "classes", given.get("ignore_index")
    beyond = _beyond(ids, rows, ignored) if ids is not None and ids.device.type == "cpu" else None
    if ids is None or beyond is None:
        return None
    place = beyond[0].tolist()
    axes = ("position",) if ids is first and ids.dim() == 1 else ("sample", "position")
    where = dict(zip(axes, place, strict=False))
    name = "input" if ids is first else "target"
    return {"name": name, "id": int(ids[tuple(place)]), of: rows, **where, **_more(ids, beyond)}


def _beyond(ids: Tensor, count: int, ignored: int | None = None) -> Tensor | None:
    """Where the ids are that are none of so many, one row each; None where all are."""
    beyond = (ids >= count) | (ids < 0)
    beyond = beyond if ignored is None else beyond & (ids != ignored)
    return torch.nonzero(beyond) if bool(beyond.any()) else None


def _more(ids: Tensor, beyond: Tensor) -> dict[str, int]:
    """How many ids are beyond, and the largest of them."""
    return {"beyond": len(beyond), "largest": int(ids[tuple(beyond.unbind(1))].max())}


def _fact(name: str, tensor: Tensor, vocabulary: int | None) -> dict[str, Any] | None:
    if tensor.is_floating_point():
        if is_finite(tensor):
            return None
        found = places(tensor)
        if not (found.nan or found.inf):
            return None
        return {
            "name": name,
            "values": f"{found.nan} nan, {found.inf} inf",
            "sample": found.indices[0][0] if found.indices[0] else 0,
        }
    if vocabulary is None or tensor.dtype not in (torch.int64, torch.int32) or "mask" in name:
        return None
    beyond = _beyond(tensor, vocabulary, IGNORED_LABEL)
    if beyond is None:
        return None
    place = beyond[0].tolist()
    return {
        "name": name, "token": int(tensor[tuple(place)]), "vocabulary": vocabulary,
        "sample": place[0] if place else 0, "position": place[1] if len(place) > 1 else 0, **_more(tensor, beyond),
    }  # fmt: skip


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
