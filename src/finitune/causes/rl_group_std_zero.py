"""Rewards are normalised over a group of one answer, whose standard deviation does not exist.

## What happens

Group methods (GRPO, RLOO) subtract the mean reward of the answers to one prompt and divide by their standard deviation.
Of one answer that is zero over zero degrees of freedom: NaN advantages and a NaN loss, or an advantage that is always
zero and a run that learns nothing.

## How to tell

`num_generations` is 1. "std(): degrees of freedom is <= 0" in stderr. In later releases the trainer refuses. A group
whose answers all have the same reward has a standard deviation of zero: divided by it with an eps, as trainers do, the
advantage is zero; in a loop of one's own without an eps it is 0/0.

## How to prove

Take the step again with an eps beside the standard deviation, or, where a group is one answer, with two of them: the
advantages are finite.

## What to do

An eps of 1e-4 beside the standard deviation, and at least two answers per prompt, better eight (change-settings): a
group whose answers all earn the same has no spread. The batch must be a multiple of the group.

## What does not help

For a group of one, a larger eps in the division: 0 / eps is zero, and nothing is learned. Clipping.

## References

Incident taxonomy (one public incident); TRL, GRPO trainer (at least two generations are asked for).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Training
from finitune.finding import Evidence, Finding, Origin, Remedy, Where

remedies = ["change-settings"]
public_incidents = 1
foresees = "group size"

_SPREADS = ("aten.std", "aten.var", "aten.std_mean", "aten.var_mean")
_SPREAD = re.compile(r"/.*\bstd\b|/.*\bvar\b|/.*_std\b|/.*sigma")
_REWARDS = re.compile(r"(\b|_)adv|advantage|reward|(\b|_)returns(\b|_)", re.IGNORECASE)

tells: Tells = {
    "std-of-one": (DECISIVE, "a group of one has no standard deviation"),
    "never-a-gradient": (STRONG, "where all answers to a prompt earn the same, every advantage is 0"),
    "reinforcement": (HINT, "rewards are normalised over a group"),
    "zero-loss-finite-gradient": (HINT, "an advantage of 0 gives a loss of 0"),
}


def foresee(training: Training) -> Iterator[Finding]:
    if training.generations != 1 or training.teacher:
        return  # what a teacher says needs no comparison
    yield Finding(
        severity="error",  # one number has no standard deviation, in any release
        message="num_generations is 1: the rewards of a prompt have no standard deviation, so advantages are NaN or 0",
        where=Where(file=training.source, key="num_generations"),
        evidence={"generations": 1, "at_least": 2},
        remedy=Remedy(patch={"num_generations": 8}),
    )


def weigh(
    training: Training | None = None, symptoms: set[str] | None = None, origin: Origin | None = None
) -> Iterator[Evidence]:
    if origin is not None and origin.line and (spread := _spread(origin)) is not None:
        place, _, statement = origin.line.partition(": ")
        function = place.partition(" in ")[2]
        if _SPREAD.search(statement):
            yield evidence("origin", STRONG, spread)
        if _REWARDS.search(f"{function}: {statement}"):
            yield evidence("statement", DECISIVE, "what is divided are rewards or advantages")
    if training is None or training.generations is None:
        return
    if training.generations != 1:
        yield evidence("group size", -DECISIVE, "rewards are not normalised over a group of one")
    else:
        yield evidence("group size", DECISIVE if symptoms else STRONG, "rewards are normalised over a group of one")


def _spread(origin: Origin) -> str | None:
    """What of a spread is bad, in words."""
    if origin.op in _SPREADS and "nan" in (origin.values or ""):
        return f"{origin.op} of finite numbers gives {origin.values}: one number has no spread"
    if origin.op == "aten.div" and origin.divisor:
        return f"the divisor is a standard deviation, and {origin.divisor}"
    return None
