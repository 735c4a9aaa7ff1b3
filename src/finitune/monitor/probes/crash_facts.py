"""What a batch held when the program died: ids beyond the embedding, labels beyond the classes, what is not finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from finitune.monitor.probes.finite import is_finite, places
from finitune.monitor.probes.out_of_range import Flags
from finitune.monitor.replay.capture import Call
from finitune.monitor.replay.padding import IGNORED_LABEL


def facts_of_batch(calls: Sequence[Call], vocabulary: int | None) -> list[dict[str, Any]]:
    """Of the calls since the last step, the newest first: each fact with its sample and position, from 0."""
    facts: list[dict[str, Any]] = []
    for call in reversed(calls):
        for name, tensor in _named(call):
            fact = _fact(name, tensor, vocabulary) if tensor.device.type == "cpu" else None
            if fact is not None:
                facts.append(fact)
        facts += [flag for flag in Flags.read(call) if flag]
        facts.append({"inputs": {name: f"{_dtype(t)} {list(t.shape)}" for name, t in _named(call)}})
        if len(facts) > 1:
            return facts
    return facts


def _named(call: Call) -> list[tuple[str, Tensor]]:
    given = [*enumerate(call.args), *call.kwargs.items()]
    return [(f"input {name}" if isinstance(name, int) else name, t) for name, t in given if isinstance(t, Tensor)]


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
    beyond = (tensor >= vocabulary) | ((tensor < 0) & (tensor != IGNORED_LABEL))
    if not bool(beyond.any()):
        return None
    place = torch.nonzero(beyond)[0].tolist()
    return {
        "name": name, "token": int(tensor[tuple(place)]), "vocabulary": vocabulary,
        "sample": place[0] if place else 0, "position": place[1] if len(place) > 1 else 0,
    }  # fmt: skip


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
