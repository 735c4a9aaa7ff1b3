"""A log without a fault: what its numbers cannot show, and what the files beside it foresee of that.

A model that learned something else has a healthy loss. Chapters of such causes say in `unseen` what no log shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from finitune.chapter import causes
from finitune.diagnosis.ranking import expected, foreseen
from finitune.facts import Facts
from finitune.finding import SEVERITIES, Finding, Incident, NotChecked, RankedCause
from finitune.sources.logs.attempt import Attempt

ALONE = "whether the model learned what was meant: numbers do not show it, --config, --model and --data may"
BESIDE = "whether the model learned what was meant: numbers do not show it, and no file speaks against it"
SYMPTOM = "wrong-model"
LONG = 10
"""Rows without a gradient that are no accident: one group of equal rewards has none, and the next one has."""


def unseen(facts: Facts) -> tuple[list[Incident], list[NotChecked]]:
    """One incident where `facts` warn of what leaves no trace; else a word on what was not seen."""
    silent = {name: chapter for name, chapter in causes().items() if hasattr(chapter.module, "unseen")}
    inputs = facts.by_name()
    found = [finding for chapter in silent.values() if (finding := foreseen(chapter, inputs))]
    found.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    grave = [finding for finding in found if finding.severity != "info"]
    if not grave:
        hints = [f"{silent[one.cause].module.unseen} ({one.cause}): {one.message}" for one in found]
        alone = facts.training is None and facts.model is None
        return [], [NotChecked(input="log", why=why) for why in hints or [ALONE if alone else BESIDE]]
    first = silent[grave[0].cause]
    message = f"every number is finite; a log does not show {first.module.unseen}, and the files warn of it"
    incident = Incident(
        step=0, rank=0, symptom=SYMPTOM, reproducible=None, origin=None, causes=[_ranked(one) for one in grave],
        action="none", message=message, not_located="every number is finite",
        next_check=" ".join(first.sentences("How to prove")[:2]),
    )  # fmt: skip
    return [incident], []


def without_gradient(attempts: Sequence[Attempt]) -> Iterator[NotChecked]:
    """Reinforcement learning that has come to rest: ordinary where the task is solved, and else nothing is learned."""
    for attempt in attempts:
        norms = attempt.signals.get("grad_norm")
        if not attempt.rewards or norms is None:
            continue
        some = np.flatnonzero(norms.values)
        rows = len(norms) - (int(some[-1]) + 1 if len(some) else 0)
        if rows >= LONG:
            why = (
                f"whether anything is learned: the gradient is 0 in the last {rows} rows, as it is where all answers "
                "to a prompt have the same reward (rl-group-std-zero)"
            )
            yield NotChecked(input="log", why=why)


def _ranked(finding: Finding) -> RankedCause:
    term = expected(causes()[finding.cause], finding)
    return RankedCause(
        cause=finding.cause, confidence=None, proved=False, bits=term.bits, evidence=[term],
        remedies=[finding.remedy] if finding.remedy else [],
    )  # fmt: skip
