"""The signals: one number per optimizer step each. One catalogue of names, units, costs and reductions over ranks.

`finitune run --signals gate|economy|full` chooses how much is measured; each level holds those before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["gate", "economy", "full"]
LEVELS: tuple[Level, ...] = ("gate", "economy", "full")

Reduction = Literal["same", "own", "whole", "max"]
"""Over ranks: every rank has the same number; each records its own; one number of all shards; the largest of any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One row of the catalogue."""

    name: str
    unit: str
    meaning: str
    level: Level
    cost: str
    over_ranks: Reduction


def _signal(name: str, unit: str, meaning: str, level: Level, cost: str, over_ranks: Reduction) -> Signal:
    return Signal(name=name, unit=unit, meaning=meaning, level=level, cost=cost, over_ranks=over_ranks)


_ONE_READ = "one fused read of the gradients"
_SAMPLED = "every 16th step, at most 65,536 elements"
_SCHEDULED = "every 64th step"

CATALOGUE = (
    _signal("loss", "as the loop computes it", "the sum of what was handed to backward", "gate", "none", "own"),
    _signal(
        "grad_norm", "L2 norm", "of all gradients, before clipping, without the loss scale", "gate", _ONE_READ, "whole"
    ),
    _signal("lr", "learning rate", "the largest over parameter groups", "gate", "none", "same"),
    _signal("loss_scale", "factor", "of a float16 run; absent where nothing is scaled", "gate", "none", "same"),
    _signal("skipped", "0 or 1", "the update was discarded, by the trainer or by finitune", "gate", "none", "same"),
    _signal(
        "bad_update",
        "0 or 1",
        "finite gradients, and the optimizer made non-finite weights of them",
        "gate",
        "one read of float16 weights",
        "same",
    ),
    _signal("seconds", "s", "since the step before", "gate", "none", "own"),
    _signal(
        "clip_factor",
        "factor",
        "by which clipping multiplied the gradients; 1 where it left them",
        "economy",
        "none",
        "same",
    ),
    _signal(
        "zero_gradients",
        "fraction",
        "of the tensors that the optimizer holds, those whose gradient is exactly zero or absent",
        "economy",
        "none",
        "own",
    ),
    _signal(
        "trained_tensors",
        "count",
        "the most of the optimizers' tensors with a gradient other than zero so far; in steps in which it grows",
        "economy",
        "none",
        "own",
    ),
    _signal(
        "kept_gradients",
        "fraction",
        "of a few tensors of the optimizer, those with a gradient as every backward since its last step began",
        "economy",
        "none where gradients are set to None; else a few elements of at most 8 tensors",
        "own",
    ),
    _signal(
        "cut_off_segments",
        "count",
        "checkpointed segments with trained parameters that no gradient enters; absent where there are none",
        "economy",
        "none",
        "own",
    ),
    _signal(
        "targets", "count", "labels that the loss is computed on; absent where not known", "economy", _SCHEDULED, "own"
    ),
    _signal(
        "repeated_batch",
        "0 or 1",
        "the batch is the one of the step before, element by element",
        "economy",
        "a hash of 64 elements",
        "own",
    ),
    _signal(
        "untracked_calls",
        "count",
        "calls of models without gradients since the step before, as to generate text; absent where there are none",
        "economy",
        "none",
        "own",
    ),
    _signal(
        "update_ratio",
        "ratio",
        "norm of the update over norm of the weights, median over sampled tensors",
        "economy",
        _SAMPLED,
        "own",
    ),
    _signal(
        "first_update_ratio",
        "ratio",
        "the same of steps in which a run begins: no level that later ones are compared with",
        "economy",
        "steps 2, 4 and 8, at most 65,536 elements",
        "own",
    ),
    _signal(
        "moved",
        "fraction",
        "of the sampled elements with a gradient other than zero, those that the update changed",
        "economy",
        _SAMPLED,
        "own",
    ),
    _signal(
        "unmoved_tensors",
        "count",
        "float32 tensors with a rate and a sampled gradient above zero, none of whose sampled elements changed",
        "economy",
        _SAMPLED,
        "own",
    ),
    _signal(
        "frozen_moved", "count", "frozen tensors that the step of an optimizer changed", "economy", _SCHEDULED, "own"
    ),
    _signal(
        "lost_statistics",
        "count",
        "batch norms whose running statistics are not finite, and no finite ones could be put back",
        "economy",
        "one read of the running statistics, and a copy of them",
        "own",
    ),
    _signal(
        "embedding_outlier",
        "ratio",
        "largest row norm of the input embedding over the median",
        "economy",
        _SCHEDULED,
        "own",
    ),
    _signal(
        "reduction_error",
        "relative distance",
        "of the gradients from an independent average over ranks",
        "economy",
        "steps 1 to 5 and every 50th, one collective",
        "max",
    ),
    _signal(
        "replica_error",
        "relative distance",
        "between the weights of ranks that should be the same",
        "economy",
        "every 50th step, on the same collective",
        "max",
    ),
    _signal(
        "attention_logit",
        "largest magnitude",
        "of query times key as softmax gets it, over sampled heads",
        "full",
        _SCHEDULED,
        "own",
    ),
    _signal("activation_peak", "largest magnitude", "that any module puts out", "full", _SCHEDULED, "own"),
)
"""Per-tensor gradient norms are recorded besides: all of them around an incident, and with `full` every 64th step."""

SIGNALS = tuple(signal.name for signal in CATALOGUE)


def measured_at(level: Level) -> frozenset[str]:
    """The names of the signals that `level` measures."""
    return frozenset(signal.name for signal in CATALOGUE if LEVELS.index(signal.level) <= LEVELS.index(level))
