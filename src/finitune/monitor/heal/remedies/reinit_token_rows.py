"""Untrained embedding rows of the running model are drawn anew from the distribution of its trained ones.

Needs: an embedding that this process holds whole, and where the optimizer keeps float32 masters of it, those too.
Price: none for later steps; while it is applied, memory for the new rows. Undo: the rows get their old bits back. The
optimizer's moments of the rows are left as they are, and no random number of the run is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finitune.monitor.heal.cure import Case, Change, Cure, Unable, Undo
from finitune.monitor.heal.masters import is_fragmented, masters_of, write_fragment
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.embeddings import input_embedding
from finitune.monitor.probes.modules import device_of
from finitune.monitor.probes.ranks import is_sharded
from finitune.monitor.replay.placeholders import placeholders
from finitune.monitor.replay.rerun import Setting
from finitune.remedies.reinit_token_rows import apply as drawn
from finitune.reports.sentences import several

action = "healed"
SEED = 0
BLOCK = 4096
"""Rows that are cast to float32 at a time."""


def cure(case: Case) -> Cure:
    """Raises Unable."""
    model = case.watched.model
    embedding = None if model is None else input_embedding(model)
    if model is None or embedding is None:
        raise Unable("the model has no input embedding that could be found")
    weight = embedding.weight
    if is_sharded([weight]) or weight.dim() != 2 or not weight.is_floating_point() or weight.device.type == "meta":
        raise Unable("the embedding is held in parts")
    known = placeholders(model, case.inquiry.origin, case.inquiry.event.get("facts"))
    ids, others = (_numbers(known[name]) for name in ("{short_rows}", "{other_rows}"))
    if not ids or not others:
        raise Unable("which rows were never trained is not known")
    if masters_of(case.watched.optimizer(), weight) is None and not is_fragmented(weight):
        raise Unable("the optimizer keeps a copy of the embedding that could not be found")
    orders = {"rows": ids}
    return Cure(
        text=f"embedding {several('row', ids)} drawn anew from the trained rows of {weight.shape[0]:,}",
        price="",
        targets=frozenset(f"row {row}" for row in ids),
        change=_with_new(weight, ids),
        placebo=_with_new(weight, others[: len(ids)]),
        instead=f"{several('row', others[: len(ids)])} drawn anew instead",
        apply=lambda: repeat(case.watched, orders),
        orders=orders,
    )


def repeat(watched: Watched, orders: Mapping[str, Any]) -> Undo:
    """The same bits on every rank, whose weights are the same."""
    assert watched.model is not None
    embedding = input_embedding(watched.model)
    assert embedding is not None
    weight, ids = embedding.weight, orders["rows"]
    rows = new_rows(weight, ids)
    undone = [write_rows(t, ids, rows) for t in (weight, *(masters_of(watched.optimizer(), weight) or ()))]
    undone.append(write_fragment(weight, ids, rows))

    def undo() -> None:
        for put_back in undone:
            put_back()

    return undo


def new_rows(weight: Tensor, ids: Sequence[int]) -> Tensor:
    """Shape [ids, columns], float32 on the device of `weight`: draws that depend on `weight` and `ids` alone."""
    try:
        each = dict(drawn(partial(_blocks, weight), ids, SEED))
    except ValueError as error:
        raise Unable(str(error)) from None
    return torch.from_numpy(np.stack([each[row] for row in ids])).to(weight.device, torch.float32)


@torch.no_grad()
def write_rows(tensor: Tensor, ids: Sequence[int], rows: Tensor) -> Any:
    """Returns what puts the old bits back."""
    index = torch.tensor(list(ids), device=tensor.device)
    before = tensor.detach().index_select(0, index)

    @torch.no_grad()
    def put_back() -> None:
        tensor.detach().index_copy_(0, index, before)

    tensor.detach().index_copy_(0, index, rows.to(tensor.device, tensor.dtype))
    return put_back


def _with_new(weight: Tensor, ids: Sequence[int]) -> Change:
    @contextmanager
    def changed(setting: Setting) -> Iterator[None]:
        put_back = write_rows(weight, ids, new_rows(weight, ids).to(device_of(setting.model)))
        try:
            yield
        finally:
            put_back()

    return changed


def _blocks(weight: Tensor) -> Iterable[tuple[int, Any]]:
    for first in range(0, weight.shape[0], BLOCK):
        yield first, weight.detach()[first : first + BLOCK].float().cpu().numpy()


def _numbers(text: str | None) -> list[int]:
    return [int(part) for part in text.split(",")] if text else []
