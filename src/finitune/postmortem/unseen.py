"""A log without a fault: what its numbers cannot show, and what the files beside it foresee of that.

A model that learned something else has a healthy loss. Chapters of such causes say in `unseen` what no log shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from finitune.cause import causes
from finitune.finding import SEVERITIES, Evidence, Finding, Incident, NotChecked, RankedCause

ASK = "whether the model learned what was meant: numbers do not show it, --config, --model and --data may"
SYMPTOM = "wrong-model"


def unseen(findings: Sequence[Finding], bits: dict[str, float]) -> tuple[list[Incident], list[NotChecked]]:
    """One incident where `findings` warn of what leaves no trace; else a word on what was not seen.

    `bits` is what a finding of each severity weighs.
    """
    silent = {name: what for name, chapter in causes().items() if (what := getattr(chapter.module, "unseen", ""))}
    found = [finding for finding in findings if finding.cause in silent]
    grave = [finding for finding in found if finding.severity != "info"]
    if not grave:
        hints = [f"{silent[one.cause]} ({one.cause}): {one.message}" for one in found]
        return [], [NotChecked(input="log", why=why) for why in hints or [ASK]]
    grave.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    ranked = {finding.cause: _ranked(finding, bits) for finding in reversed(grave)}
    first = grave[0].cause
    incident = Incident(
        step=0, rank=0, symptom=SYMPTOM, reproducible=None, origin=None, action="none",
        causes=sorted(ranked.values(), key=lambda cause: -cause.bits),
        message=f"every number is sound; a log does not show {silent[first]}, and the files foresee trouble there",
        not_located="every number is finite", next_check=" ".join(causes()[first].sentences("How to prove")[:2]),
    )  # fmt: skip
    return [incident], []


def _ranked(finding: Finding, bits: dict[str, float]) -> RankedCause:
    term = Evidence(text=f"could be foreseen: {finding.message}", bits=bits[finding.severity])
    return RankedCause(
        cause=finding.cause, confidence=None, proved=False, bits=term.bits, evidence=[term],
        remedies=[finding.remedy] if finding.remedy else [],
    )  # fmt: skip
