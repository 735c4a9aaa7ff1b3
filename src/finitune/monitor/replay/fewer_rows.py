"""A captured step with some of its samples left out, and which samples make it non-finite.

Samples are numbered from 0 through all micro-steps of the step. What the loop computes of the model's output is cut to
the others: a mean is that of the samples that are left; a number that the loop counted itself stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from finitune.monitor.capture.batch_objects import with_tensors
from finitune.monitor.capture.step import Call, Capture, MicroStep, versions_of
from finitune.monitor.loss_graph.loss_operators import WEIGHT
from finitune.monitor.loss_graph.objective import Input, Term, terms

MAX_RUNS = 64
"""Runs of the step in which the samples at fault are looked for: k samples of n take about 2 k log2 n."""
FEW = 0.5
"""A larger share of the batch is no matter of single samples."""
MAX_PEAKS = 4096
ALONG_ROWS = frozenset({"SelectBackward0", "SliceBackward0", "GatherBackward0", "CumsumBackward0"})
JOINS = frozenset({"CatBackward0", "StackBackward0"})
REORDERS = frozenset({"TBackward0", "PermuteBackward0", "TransposeBackward0"})


def rows_of(micro: MicroStep) -> int:
    """Samples of a micro-step. Raises ValueError where its inputs do not share their first axis."""
    sizes = {t.shape[0] for call in micro.calls for t, _ in call.versions if t.dim()}
    if len(sizes) != 1:
        raise ValueError("the samples of the batch cannot be told apart: its tensors differ in their first axis")
    return sizes.pop()


def without(capture: Capture, rows: Collection[int]) -> Capture:
    """The same step without these samples. Raises ValueError where they cannot be told apart, or none is left."""
    first, kept = 0, list[MicroStep]()
    for micro in capture.micro_steps:
        count = rows_of(micro)
        keep = [row for row in range(count) if first + row not in rows]
        first += count
        if keep:
            kept.append(micro if len(keep) == count else _cut(micro, keep, count))
    if not kept:
        raise ValueError("no sample is left")
    return Capture(micro_steps=kept)


def guilty(capture: Capture, finite: Callable[[Capture], bool], hints: Sequence[int] = ()) -> tuple[int, ...]:
    """The samples that make the step non-finite, found by halving; `hints` are looked at first. Empty: no few ones do.

    `finite` runs a step again; it may raise when the budget is used up.
    """
    total = sum(map(rows_of, capture.micro_steps))
    everyone, runs = range(total), 0

    def bad(rows: Sequence[int]) -> bool:
        nonlocal runs
        runs += 1
        if runs > MAX_RUNS:
            raise ValueError(f"the samples at fault were not found in {MAX_RUNS} runs")
        return not finite(without(capture, set(everyone) - set(rows)))

    def halved(rows: Sequence[int]) -> list[int]:
        """Of `rows`, which are bad together."""
        if len(rows) == 1:
            return list(rows)
        halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        found = [row for half in halves if bad(half) for row in halved(half)]
        return found or list(rows)

    known = sorted({row for row in hints if row < total})
    others = [row for row in everyone if row not in known]
    found = halved(known) if known and bad(known) else []
    if others and (bad(others) if len(others) < total else True):
        found += halved(others)
    return tuple(sorted(found)) if len(found) <= FEW * total else ()


def facts_of_samples(capture: Capture) -> dict[str, Any]:
    """What an incident records of them: how many each micro-step has, where the inputs show it, and their `peaks`."""
    counts = list[int]()
    with suppress(ValueError, RuntimeError):
        counts = list(map(rows_of, capture.micro_steps))
    found, numbers = peaks(capture)
    return {"samples": counts, "sample_peaks": found, "sample_numbers": numbers}


def peaks(capture: Capture) -> tuple[list[float], int]:
    """The largest magnitude among the floating inputs and targets of every sample, and how many numbers a sample has of
    these; empty where there are none.
    """
    out: list[float] = []
    numbers = 0
    try:
        for micro in capture.micro_steps:
            count = rows_of(micro)
            masks = {id(value) for call in micro.calls for name, value in call.kwargs.items() if "mask" in name}
            # What has a gradient was computed with trained tensors, and is no data.
            versions = [t for call in micro.calls for t, _ in call.versions if not t.requires_grad]
            given = [t for t in versions if id(t) not in masks]
            given += [] if micro.objective is None else _targets(micro.objective.whole)
            floats = [t for t in given if t.is_floating_point() and t.dim() and t.shape[0] == count and t.numel()]
            if not floats:
                return [], 0
            each = torch.stack([t.detach().float().abs().flatten(1).amax(1).cpu() if t.dim() > 1
                                else t.detach().float().abs().cpu() for t in floats])  # fmt: skip
            out += each.amax(0).tolist()
            numbers = max(numbers, sum(t.numel() for t in floats) // count)
    except (ValueError, RuntimeError):
        return [], 0
    return (out, numbers) if 1 < len(out) <= MAX_PEAKS else ([], 0)


def _targets(whole: Input) -> list[Tensor]:
    return [own for term in terms(whole) if isinstance(own := term.kept.get("target"), Tensor)]


def _cut(micro: MicroStep, keep: list[int], count: int) -> MicroStep:
    assert micro.objective is not None
    if any(call.fed for call in micro.calls):
        raise ValueError("the loop computes between two modules, and what it computes there is not cut")
    objective = replace(micro.objective, whole=_cut_term(micro.objective.whole, keep, count), first={})
    return replace(micro, calls=[_cut_call(call, keep) for call in micro.calls], objective=objective)


def _cut_call(call: Call, keep: list[int]) -> Call:
    chosen = lambda tensor: _chosen(tensor, keep) if tensor.dim() else tensor  # noqa: E731
    args, kwargs = pytree.tree_map(lambda leaf: with_tensors(leaf, chosen), (call.args, call.kwargs))
    return replace(call, args=args, kwargs=kwargs, versions=versions_of(pytree.tree_leaves((args, kwargs))))


def _chosen(tensor: Tensor, keep: list[int]) -> Tensor:
    return tensor.detach().index_select(0, torch.tensor(keep, device=tensor.device))


def _cut_term(term: Any, keep: list[int], count: int) -> Any:
    """A term of the loss for the samples of `keep` alone, of `count`.

    Raises ValueError for operators that mix samples or number them, so that what is left cannot be read off.
    """
    if not isinstance(term, Term) or term.name == WEIGHT:
        return term
    _refuse_mixing(term)
    kept = {name: _cut_kept(term, name, value, keep, count) for name, value in term.kept.items()}
    return replace(term, kept=kept, inputs=tuple(_cut_term(each, keep, count) for each in term.inputs))


def _refuse_mixing(term: Term) -> None:
    dims: list[Any] = [term.kept.get(name) for name in ("dim", "dim0", "dim1")]
    mixes = (
        (term.name in ALONG_ROWS and 0 in dims)
        or (term.name in JOINS and (dims[0] is None or dims[0] <= 0))
        or (term.name in REORDERS and (0 in dims or term.name == "TBackward0" or _moves_rows(term.kept)))
        or any(isinstance(i, Tensor) and i.dtype != torch.bool for i in term.kept.get("indices") or ())
    )
    if mixes:
        raise ValueError(f"the loss mixes its samples ({term.name})")


def _moves_rows(kept: Mapping[str, Any]) -> bool:
    order = kept.get("dims")
    return bool(order) and order[0] != 0


def _cut_kept(term: Term, name: str, value: Any, keep: list[int], count: int) -> Any:
    if name == "shape":
        cut = value and value[0] % count == 0
        return [value[0] // count * len(keep), *value[1:]] if cut else value
    if isinstance(value, list):
        return [_cut_kept(term, "", each, keep, count) for each in value]
    of_classes = term.name.startswith("NllLoss") and name == "weight"
    if not isinstance(value, Tensor) or not value.dim() or of_classes or value.shape[0] % count:
        return value
    return _chosen(value.unflatten(0, (count, -1)), keep).flatten(0, 1)  # samples and positions in one axis
