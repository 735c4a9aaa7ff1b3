"""Where a batch is padded, and a call of the model with its rows laid out in another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

Run = Callable[[Any], list[Tensor]]
"""Calls the model with its (args, kwargs) and returns the tensors of its output, flattened."""
IGNORED_LABEL = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """The padding of one batch; `where` is True at padded positions, shape [rows, positions]."""

    where: Tensor
    side: str | None
    """"left" or "right"; None where rows are masked as a whole, which says of no side."""
    token: int
    attended: bool | None
    """The attention mask lets some of it be seen; None where no mask was recognised, so that it is not known."""

    @property
    def rows(self) -> int:
        """How many rows are padded."""
        return int(self.where.any(dim=1).sum())


def padding_of(ids: Tensor, mask: Any) -> Padding | None:
    """What fills up the rows of `ids`, shape [rows, positions]; None where nothing does.

    A mask says it. Where the mask says nothing, it is the one token that fills the edge of rows to different lengths.
    """
    fits = isinstance(mask, Tensor) and mask.shape == ids.shape
    whole = (mask == 0).all(dim=1) if fits else None
    for side in ("left", "right"):
        if whole is not None and bool((where := _edge(mask == 0, side))[~whole].any()):
            return Padding(where=where, side=side, token=int(ids[where][0]), attended=False)
    if whole is not None and whole.any():
        where = whole[:, None].expand_as(ids)
        return Padding(where=where, side=None, token=int(ids[where][0]), attended=False)
    found: list[Padding] = []
    for side in ("left", "right"):
        edge = ids[:, 0 if side == "left" else -1]
        for token in torch.unique(edge).tolist():
            where = _edge(ids == token, side)
            lengths = where.sum(dim=1)
            partly = lengths[lengths < ids.shape[1]]  # a row of nothing else is padding where others end in it
            if len(partly) and int(partly.max()) > 1 and int(lengths.min()) < int(lengths.max()):
                found.append(Padding(where=where, side=side, token=token, attended=True if fits else None))
    # Two equal tokens may stand at an edge by chance.
    return max(found, key=lambda one: int(one.where.sum()), default=None)


def _edge(these: Tensor, side: str) -> Tensor:
    """Only the unbroken run from the given side."""
    run = these if side == "left" else these.flip(1)
    run = run.long().cumprod(dim=1).bool()
    return run if side == "left" else run.flip(1)


def one_row_at_a_time(run: Run, given: Any, ids: Tensor, padding: Padding | None) -> list[Tensor]:
    """Every row alone and without its padding; the outputs put together as if it had been one batch."""
    rows, positions = ids.shape
    parts: list[list[Tensor]] = []
    starts: list[int] = []
    targets: list[int] = []
    for row in range(rows):
        keep = torch.arange(positions, device=ids.device)
        keep = keep if padding is None else keep[~padding.where[row]]
        starts.append(int(keep[0]))

        def alone(leaf: Tensor, row: int = row, keep: Tensor = keep) -> Tensor:
            leaf = leaf[row : row + 1]
            return leaf[:, keep] if leaf.dim() >= 2 and leaf.shape[1] == positions else leaf

        part = _with_rows(given, ids, alone)
        parts.append(run(part))
        targets.append(_targets(part[1].get("labels")))
    # A trainer that counts the targets itself has the model divide by their number: then the losses are shares.
    shares = given[1].get("num_items_in_batch") is not None
    weights = [1.0 if shares else count / max(sum(targets), 1) for count in targets]
    return [_together(outputs, starts, positions, weights) for outputs in zip(*parts, strict=True)]


def _together(outputs: tuple[Tensor, ...], starts: list[int], positions: int, weights: list[float]) -> Tensor:
    if outputs[0].dim() == 0:  # the model's own loss; a row without a target has none
        return torch.stack([o * weight for o, weight in zip(outputs, weights, strict=True) if weight]).sum()
    if outputs[0].dim() >= 3:  # [1, positions, ...]: the padding that was left out is zero again
        rest = (0, 0) * (outputs[0].dim() - 2)
        filled = zip(outputs, starts, strict=True)
        return torch.cat([F.pad(o, (*rest, start, positions - start - o.shape[1])) for o, start in filled])
    return torch.cat(outputs)


def _targets(labels: Any) -> int:
    """Supervised positions of one row; without labels every row counts alike."""
    return int((labels[:, 1:] != IGNORED_LABEL).sum()) if isinstance(labels, Tensor) and labels.dim() == 2 else 1


def on_the_other_side(run: Run, given: Any, ids: Tensor, padding: Padding) -> list[Tensor]:
    """The padding moved to the other side of every row; the outputs are in the order that the loop expects."""
    where = padding.where if padding.side == "left" else ~padding.where
    order = where.long().argsort(dim=1, stable=True)
    return [_along(out, order.argsort(dim=1)) for out in run(_with_rows(given, ids, lambda leaf: _along(leaf, order)))]


def _along(tensor: Tensor, order: Tensor) -> Tensor:
    """Positions of each row in `order`, where the tensor has rows and positions."""
    if tensor.shape[:2] != order.shape:
        return tensor
    index = order.to(tensor.device).view(*order.shape, *([1] * (tensor.dim() - 2))).expand_as(tensor)
    return tensor.gather(1, index)


def in_reverse(run: Run, given: Any, ids: Tensor) -> list[Tensor]:
    """The rows in the opposite order, each as it was."""
    rows = ids.shape[0]
    turn = lambda t: t.flip(0) if t.dim() and t.shape[0] == rows else t  # noqa: E731
    return [turn(out) for out in run(_with_rows(given, ids, turn))]


def _with_rows(given: Any, ids: Tensor, change: Callable[[Tensor], Tensor]) -> Any:
    """`given` with every tensor of the batch changed.

    Raises ValueError for a mask with an axis for queries, whose rows and columns would have to move together.
    """

    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim() or leaf.shape[0] != ids.shape[0]:
            return leaf
        if leaf.dim() == 4 and leaf.shape[-2:] == (ids.shape[1], ids.shape[1]):
            raise ValueError("the batch holds a mask of queries and keys")
        return change(leaf)

    return pytree.tree_map(changed, given)
