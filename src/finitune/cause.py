"""What a chapter of `causes/` may declare.

    foresee(facts by name...) -> Iterator[Finding]      before the run, from facts alone
    weigh(inputs by name...)  -> Iterator[Evidence]     after it, for and against, from what a run measured
    tells = {"observation": (bits, "reason"), ...}      the same, from what a log shows and somebody tells
    experiments = [Experiment(...), ...]                what decides it
    remedies = ["slug", ...]                            chapters of `remedies/`, best first
    public_incidents = 10                               how often it occurs in the public incidents: the prior
    unseen = "whether ..."                              what no log shows of it, where every number stays sound
    ruins = "high-rate"                                 the observation that what `foresee` calls an error stands for

`weigh` may name any group of `Facts`, any signal (`loss`, `grad_norm`, `lr`, `loss_scale`, `skipped`: a Series up to
the bad step), and: `signals` (all of these), `symptoms` (set of slugs seen), `origin` (Origin), `repeats` (bool),
`incident` (the recorded event). Observations are the signs of a log (`diagnosis/logged/signs.py`,
`sources/logs/messages.py`)
and the slugs of `sources/cases/statements.txt` and `sources/cases/circumstances.py`; those that mean
the same have one name. `bits`
is the log2 of how much likelier one is under this cause. Observations that share a row ("climbed diverged") say one
thing in two ways, and are weighed once. Experiments are weighed by the diagnosis itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from finitune.chapter import Chapter, chapters

SECTIONS = (
    "What happens", "How to tell", "How to prove", "What to do", "What does not help", "References",
)  # fmt: skip
"""The sections every chapter's docstring has, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Run the captured step again under `arm`; the cause predicts the outcome `expect`.

    A placebo changes something of the same kind that the cause says is innocent, so it expects no cure.
    Placeholders: `{origin}` the module of the origin, `{sibling}` a like module elsewhere, `{tower}` the encoder of
    images or sound around it; `{short_rows}` the batch's
    token ids whose embedding rows are far too short, `{other_rows}` as many ordinary ones; `{tensor}` the weight that
    stands out, `{other_tensor}` another of its shape. An experiment whose placeholder has no value is not run.
    """

    arm: str
    expect: Literal["finite", "non-finite"]
    placebo: bool = False
    optional: bool = False
    """A prediction that the cause allows but does not demand: its failure says nothing."""


def tells_of(chapter: Chapter) -> list[tuple[tuple[str, ...], float, str]]:
    """The rows of the chapter's table: observations that say one thing, bits for or against, and the reason."""
    table: Mapping[str, tuple[float, str]] = getattr(chapter.module, "tells", {})
    return [(tuple(row.split()), bits, why) for row, (bits, why) in table.items()]


def causes() -> Mapping[str, Chapter]:
    """Every chapter of the cause book, by slug."""
    return chapters("causes")
