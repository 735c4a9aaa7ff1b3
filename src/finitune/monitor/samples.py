"""Signals beside loss and gradient norm: what the update did to a sample of the weights, and what the batch was.

Everything is computed on the device, on a schedule, and read with the one transfer of the next step; OF_UPDATE are
about the update of the step before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from finitune.monitor.capture.step import MicroStep
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.checkpointed_segments import cut_off
from finitune.monitor.probes.deepspeed import DeepSpeedUpdate, parts
from finitune.monitor.probes.embeddings import input_embedding
from finitune.monitor.probes.finite import largest
from finitune.monitor.probes.optimizers import may_spoil
from finitune.monitor.probes.padding import IGNORED_LABEL
from finitune.monitor.probes.ranks import local
from finitune.monitor.run import Run

UPDATE_EVERY, BATCH_EVERY, EMBEDDING_EVERY, REPLICAS_EVERY = 16, 64, 256, 50
FIRST_UPDATES = (2, 4, 8)
"""Their size is looked at too: a run may climb before step 17, and a warm-up begins at a rate of 0."""
TENSORS, ELEMENTS = 64, 1024
"""Of the trained tensors so many are sampled at a time, in turn, and so many elements of each."""
WEIGHTS = "weights_finite"
WEIGHTS_BEFORE = "weights_finite_before"
"""Not recorded: what trained weights that are not finite lead to is an incident. The second is of the first step."""
OF_UPDATE = ("update_ratio", "first_update_ratio", "moved", "unmoved_tensors")
BATCH_ELEMENTS = 64
ROUNDED = 1e-5
"""Of the largest gradient: smaller ones may be what float32 sums leave of a zero, as of a bias before a batch norm."""
KEPT_TENSORS = 8


class Samples:
    """What is sampled around the steps of one optimizer."""

    def __init__(self, watched: Watched, run: Run) -> None:
        self._watched = watched
        self._run = run
        self._ready: dict[str, Tensor | float] = {}
        self._taken: list[tuple[Tensor, Tensor, Tensor]] = []
        """Weight, its sample before the step, and the sample of its gradient."""
        self._batch: Tensor | None = None
        self._first = True
        self._versions: dict[int, int] = {}
        self._before_backward: list[tuple[Tensor, int, Tensor]] = []
        self._kept: Tensor | bool | None = None
        """Per sampled tensor, whether its gradient was there as every backward since the last step began."""

    def before(self, step: int, on: Sequence[MicroStep]) -> Mapping[str, Tensor | float]:
        """What is ready to be read with this step; weights are sampled where the update is to be looked at."""
        ready, self._ready = self._ready, {}
        self._taken = []
        if self._watched.written_by_loop:
            ready[WEIGHTS] = all_finite([p.detach() for p in self._watched.written_by_loop])
        if self._run.level == "gate":
            return ready
        ready |= self._of_batch(step, on)
        ready |= self._kept_gradients()
        ready |= {"cut_off_segments": float(count)} if (count := cut_off()) else {}
        if self._first:
            self._first = False
            ready |= {WEIGHTS_BEFORE: all_finite(weights)} if (weights := self._trained()) else {}
        if step % UPDATE_EVERY == 1 or step in FIRST_UPDATES:
            self._taken = self._sampled(step)
        if step % BATCH_EVERY == 1:
            ready |= self._frozen()
        if step % EMBEDDING_EVERY == 1:
            ready |= self._embedding()
        return ready

    def backward_begins(self) -> None:
        """A backward is about to add to the gradients; what is there now was kept, if it does add to it."""
        self._before_backward = []
        if self._run.level == "gate" or self._kept is False:
            return
        held = [p.grad for p in islice(self._watched.each_parameter(), KEPT_TENSORS) if p.grad is not None]
        chosen = [g for g in held if g.layout == torch.strided and g.numel()]
        if not held:
            self._kept = False
        elif chosen:
            there = [(_sample(g, BATCH_ELEMENTS) != 0).any() for g in chosen]
            self._before_backward = [(g, g._version, flag) for g, flag in zip(chosen, there, strict=True)]

    def backward_ended(self) -> None:
        added, self._before_backward = [flag for g, v, flag in self._before_backward if g._version != v], []
        if not added:
            return
        there, known = torch.stack(added), self._kept
        self._kept = known & there if isinstance(known, Tensor) and known.shape == there.shape else there

    def of_weights(self, step: int) -> Tensor | None:
        """A sum over sampled weights, the same on every rank that holds the same model; None in most steps."""
        if self._run.level == "gate" or step % REPLICAS_EVERY != 1:
            return None
        weights = [p for p in self._watched.parameters() if p.is_floating_point() and p.numel()]
        parts = [_sample(p, BATCH_ELEMENTS).double().abs().sum() for p in weights if p.device.type in ("cpu", "cuda")]
        return torch.stack([part.to(parts[0].device) for part in parts]).sum() if parts else None

    def after(self, step: int) -> None:
        """The update has been made."""
        if self._run.level == "gate":
            return
        self._watched.versions_left = self._watched.versions()
        weights = self._trained() if may_spoil(self._watched.optimizer()) or step % UPDATE_EVERY == 0 else []
        if weights:
            self._ready[WEIGHTS] = all_finite(weights)
        if self._taken:
            found = _update_in_numbers(self._taken, _rates(self._watched.optimizer()))
            self._ready |= {"first_update_ratio": found["update_ratio"]} if step in FIRST_UPDATES else found
            self._taken = []

    def _trained(self) -> list[Tensor]:
        return [p.detach() for p in self._watched.parameters() if p.grad is not None]

    def _sampled(self, step: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        held = [(p, p.grad) for p in self._watched.parameters() if p.grad is not None and not p.grad.is_sparse]
        if not held and self._run.mode == "heal" and isinstance(self._watched.update, DeepSpeedUpdate):
            held = parts(self._watched.update)  # by which `heal` knows a rate that is too high
        if not held:
            return []
        start = (step // UPDATE_EVERY * TENSORS) % len(held)
        chosen = [*held[start:], *held[:start]][:TENSORS]
        taken = ((p, _sample(p), _sample(g)) for p, g in chosen if p.is_floating_point())
        return [(p, weights.clone(), gradient) for p, weights, gradient in taken if weights.numel()]

    def _kept_gradients(self) -> dict[str, Tensor | float]:
        kept, self._kept = self._kept, None
        if kept is None:
            return {}
        return {"kept_gradients": kept.float().mean() if isinstance(kept, Tensor) else 0.0}

    def _of_batch(self, step: int, on: Sequence[MicroStep]) -> dict[str, Tensor | float]:
        call = next((call for micro in on for call in micro.calls), None)
        given = [t for t, _ in call.versions if t.dim() and t.numel() and not t.requires_grad] if call else []
        out: dict[str, Tensor | float] = {}
        if given:
            sample = _sample(given[0], BATCH_ELEMENTS).clone()
            known, self._batch = self._batch, sample
            if known is not None and known.shape == sample.shape and known.dtype == sample.dtype:
                out["repeated_batch"] = (known == sample).all().float()
        if untracked := sum(micro.untracked for micro in on):
            out["untracked_calls"] = float(untracked)
        labels = [label for micro in on for c in micro.calls if isinstance(label := c.kwargs.get("labels"), Tensor)]
        if labels and step % BATCH_EVERY == 1:
            out["targets"] = torch.stack([(label != IGNORED_LABEL).sum() for label in labels]).sum().float()
        return out

    def _frozen(self) -> dict[str, Tensor | float]:
        """How many frozen tensors were written to since they were first seen."""
        trained = {id(p) for p in self._watched.parameters()}
        model = self._watched.model
        frozen = [p for p in model.parameters() if not p.requires_grad and id(p) not in trained] if model else []
        moved = sum(self._versions.setdefault(id(p), p._version) != p._version for p in frozen)
        return {"frozen_moved": float(moved)} if frozen else {}

    def _embedding(self) -> dict[str, Tensor | float]:
        model = self._watched.model
        embedding = input_embedding(model) if model is not None else None
        weight = getattr(embedding, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() != 2 or hasattr(weight, "to_local") or not weight.numel():
            return {}
        rows = torch.linalg.vector_norm(weight.detach(), dim=1, dtype=torch.float32)
        return {"embedding_outlier": rows.max() / rows.median().clamp_min(1e-30)}


def _sample(tensor: Tensor, elements: int = ELEMENTS) -> Tensor:
    """Evenly spaced elements, an odd stride apart so that columns do not repeat."""
    flat = local(tensor.detach()).reshape(-1)
    stride = max(1, flat.numel() // elements) | 1
    return flat[::stride][:elements]


def _rates(optimizer: Any) -> Mapping[int, Any]:
    """The learning rate of every parameter, by its identity, where the optimizer has one. ZeRO steps flat tensors, of
    which a part is a view.
    """
    groups = getattr(optimizer, "param_groups", ())
    return {id(p): group["lr"] for group in groups if "lr" in group for p in group["params"]}


def _pushed_and_still(push: Tensor, moved: Tensor, rate: Any) -> Tensor:
    """Whether none of the elements moved although gradient and learning rate, which may lie on the device, pushed."""
    still = ~moved.any() & push.any()
    if isinstance(rate, Tensor):
        return still & (rate > 0).reshape(()).to(still.device)
    return still if rate > 0 else torch.zeros_like(still)


@torch.no_grad()
def all_finite(weights: list[Tensor]) -> Tensor:
    """1 or 0, shape [], on the device."""
    return torch.isfinite(largest(weights)).all().float()


@torch.no_grad()
def _update_in_numbers(
    taken: Sequence[tuple[Tensor, Tensor, Tensor]], rates: Mapping[int, Any]
) -> dict[str, Tensor | float]:
    device = taken[0][1].device
    after = [_sample(weight) for weight, _, _ in taken]
    changed = [now != was for now, (_, was, _) in zip(after, taken, strict=True)]
    lengths = [(now.float() - was.float()).norm() for now, (_, was, _) in zip(after, taken, strict=True)]
    levels = [was.float().norm() for _, was, _ in taken]
    ratios = torch.stack([  # of weights that begin at 0 an update is no part
        torch.where(level > 0, length / level.clamp_min(1e-30), torch.nan).to(device)
        for length, level in zip(lengths, levels, strict=True)
    ])  # fmt: skip
    pushed = [gradient != 0 for _, _, gradient in taken]
    largest_gradient = torch.stack([gradient.abs().max().float().to(device) for _, _, gradient in taken])
    felt = largest_gradient > ROUNDED * largest_gradient.max()
    still = torch.stack([
        _pushed_and_still(push, moved, rates.get(id(weight), rates.get(id(weight._base), 1.0))).to(device) & feels
        for moved, push, feels, (weight, _, _) in zip(changed, pushed, felt, taken, strict=True)
        if weight.dtype == torch.float32
    ] or [torch.zeros((), dtype=torch.bool, device=device)])  # fmt: skip
    moved = torch.stack([(m & p).sum().to(device) for m, p in zip(changed, pushed, strict=True)]).sum()
    of = torch.stack([p.sum().to(device) for p in pushed]).sum()
    return {
        "update_ratio": ratios.nanmedian(),
        "moved": torch.where(of > 0, moved / of.clamp_min(1), torch.nan),
        "unmoved_tensors": still.float().sum(),
    }
