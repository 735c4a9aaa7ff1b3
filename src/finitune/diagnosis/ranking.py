"""The causes of one incident, most likely first, with every term of their weight."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from finitune.chapter import Chapter, Experiment, ask, by_hand, causes, chapters, proposed, tells_of
from finitune.evidence import DECISIVE, HINT, STRONG, strongest
from finitune.facts import Facts
from finitune.finding import Evidence, Finding, RankedCause, Remedy, Severity
from finitune.observations import Observation, Observed, about

SHOWN = 3
DIVERGED = "diverged"
"""How an arm came out that is finite, and whose loss is many times the lowest of the run."""
TAKES_STEPS = "last-steps"
"""How arms begin that take the steps before again: they show how the fault came, whatever circumstances say."""
EVEN = 4.0
"""Incidents that every cause is thought to have had besides those counted: public reports are few and selected."""
FORESEEN: Mapping[Severity, float] = {"error": DECISIVE, "warning": STRONG, "info": HINT}
"""What `check` would have said, of a log or a case."""


def rank(
    inputs: Mapping[str, Any],
    experiments: Sequence[Mapping[str, Any]] = (),
    prior: Mapping[str, Evidence] | None = None,
) -> list[RankedCause]:
    """Every cause of the book, most likely first.

    `inputs` holds what chapters may name in `weigh`, `experiments` the recorded `arm` events of the incident. Of a run
    that nobody watched `observations` holds what its log, its settings and people show: name -> Observation.
    """
    prior = prior or occurrences(counts())
    ranked = [
        _weighed(chapter, inputs, [e for e in experiments if e.get("cause") == name], prior[name])
        for name, chapter in causes().items()
    ]
    ranked = [dataclasses.replace(one, proved=False, proof=()) if rivals(one, ranked, experiments) else one
              for one in ranked]  # fmt: skip
    first, second, *rest = sorted(ranked, key=lambda cause: (not cause.proved, -cause.bits, cause.cause))
    strength = "proved" if first.proved else "likely" if first.bits - second.bits >= STRONG else "guess"
    return [dataclasses.replace(first, strength=strength), second, *rest]


def rivals(proved: RankedCause, ranked: Sequence[RankedCause], experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Causes that the same experiments would prove as well, and for which circumstances speak too."""
    if not proved.proved:
        return []
    ran = {str(e.get("arm")): e for e in experiments if e.get("cause") == proved.cause}
    return [
        other.cause for other in ranked
        if other.cause != proved.cause and _is_supported(other) and _predicts(other.cause, ran)
    ]  # fmt: skip


def _is_supported(cause: RankedCause) -> bool:
    """What was seen of the step, its prior and experiments left out, speaks for it."""
    seen = [term.bits for term in cause.evidence[1:] if not term.text.startswith(("experiment ", "placebo "))]
    return not cause.not_asked and sum(seen) > 0


def _predicts(cause: str, ran: Mapping[str, Mapping[str, Any]]) -> bool:
    """True where this cause expects of every arm that ran what came out."""
    declared = {one.arm.partition("=")[0]: one for one in experiments_of(cause)}
    expected_here = [declared.get(arm.partition("=")[0]) for arm in ran]
    return bool(ran) and all(
        one is not None and one.expect == event.get("result")
        for one, event in zip(expected_here, ran.values(), strict=True)
    )


def _weighed(
    chapter: Chapter, inputs: Mapping[str, Any], experiments: Sequence[Mapping[str, Any]], prior: Evidence
) -> RankedCause:
    observed: Observed | None = inputs.get("observations")
    weigh = chapter.function("weigh")
    answer = ask(weigh, inputs) if weigh else None
    warned = foreseen(chapter, inputs) if observed is not None else None
    seen = evidence_of(chapter, observed or {})
    found = strongest([*(answer.results if answer else ()), *seen, *([expected(chapter, warned)] if warned else ())])
    cured = any(_cures(e) and e.get("result") == "finite" for e in experiments)
    terms = [prior, *found, *(_experiment_evidence(e, cured=cured) for e in experiments)]
    facts = [inputs[f.name] for f in dataclasses.fields(Facts) if inputs.get(f.name) is not None]
    asked = bool(answer and not answer.missing and not answer.broken)
    proof = proof_of(experiments) if asked else ()
    if any(_refutes(e) for e in experiments):
        remedies = []
    elif warned and warned.remedy:
        remedies = [warned.remedy]
    else:
        remedies = (proposed(chapter, inputs) or by_hand(chapter)) if asked or seen or not facts else []
    return RankedCause(
        cause=chapter.name,
        confidence=None,
        # An experiment shows where the fault is; a decisive fact may still say that it did not come there in this way.
        proved=any(arm.startswith(TAKES_STEPS) for arm in proof[:1])
        or (bool(proof) and not any(term.bits <= -DECISIVE for term in found)),
        # A cause whose inputs are absent was not asked: it keeps its prior alone and is not shown as likely.
        bits=sum(term.bits for term in terms),
        evidence=terms,
        remedies=_not_in_vain(remedies, experiments),
        not_asked=(answer.missing or ((answer.broken,) if answer.broken else ())) if answer else (),
        proof=proof,
    )


def _not_in_vain(remedies: Sequence[Remedy], experiments: Sequence[Mapping[str, Any]]) -> list[Remedy]:
    """Those whose change no experiment made without success."""
    results: dict[str, set[Any]] = {}
    for event in filter(_cures, experiments):
        results.setdefault(str(event.get("arm")).partition("=")[0], set()).add(event.get("result"))
    failed = {arm for arm, found in results.items() if "finite" not in found}
    book = chapters("remedies")
    return [one for one in remedies if getattr(getattr(book.get(one.name), "module", None), "arm", "") not in failed]


def evidence_of(chapter: Chapter, observed: Observed) -> list[Evidence]:
    """What the chapter's table `tells` makes of the observations; the same words speak once, for what weighs most."""
    rows: dict[str, tuple[float, str, Observation]] = {}
    for name, bits, why in tells_of(chapter):
        if (one := observed.get(name)) and abs(bits) > abs(rows.get(one.words, (0.0,))[0]):
            rows[one.words] = (bits, why, one)
    return [Evidence(text=f"{one.words}: {why}", bits=bits, about=about(one.name)) for bits, why, one in rows.values()]


def foreseen(chapter: Chapter, inputs: Mapping[str, Any]) -> Finding | None:
    """The gravest finding of the chapter about these facts."""
    found: list[Finding] = chapter.ask("foresee", inputs).results
    return max(found, key=lambda one: (FORESEEN[one.severity], one.remedy is not None), default=None)


def expected(chapter: Chapter, finding: Finding) -> Evidence:
    """The finding as a piece of evidence."""
    text = f"could be foreseen: {finding.message}"
    return Evidence(text=text, bits=FORESEEN[finding.severity], about=getattr(chapter.module, "foresees", ""))


def counts() -> dict[str, int]:
    """Cause -> how many public incidents the book knows of it."""
    return {name: int(getattr(chapter.module, "public_incidents", 0)) for name, chapter in causes().items()}


def occurrences(seen: Mapping[str, float]) -> dict[str, Evidence]:
    """The prior of every cause of the book from how often each was seen."""
    total = sum(seen.values())
    whole = total + EVEN * len(causes())
    return {
        name: Evidence(
            text=f"occurs in {seen.get(name, 0):g} of {total:g} public incidents that the book knows",
            bits=math.log2((seen.get(name, 0) + EVEN) / whole),
        )
        for name in causes()
    }


def proof_of(experiments: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The arm that removes the cause and made the step finite, and the placebo that did not; empty: not proved.

    Of several arms that cured, the one that changes least is the last.
    """
    cured = [e for e in experiments if _cures(e) and e.get("result") == "finite"]
    placebos = [e for e in experiments if e.get("placebo")]
    if not cured or not placebos or any(e.get("result") not in ("non-finite", DIVERGED, "stuck") for e in placebos):
        return ()
    return str(cured[-1].get("arm")), str(placebos[0].get("arm"))


def experiments_of(cause: str) -> list[Experiment]:
    """What the chapter says would decide it."""
    return causes()[cause].declared("experiments")


def _refutes(event: Mapping[str, Any]) -> bool:
    """The arm that should have removed the cause did not: a remedy that does the same would not help."""
    return _cures(event) and not event.get("optional") and event.get("result") not in ("finite", DIVERGED)


def _cures(event: Mapping[str, Any]) -> bool:
    """It removes the cause, if this is the cause."""
    return event.get("expect") == "finite" and not event.get("placebo")


def _experiment_evidence(event: Mapping[str, Any], *, cured: bool) -> Evidence:
    """Experiments outweigh circumstances. A placebo, or a prediction of no change, says little when it comes true, and
    nothing where no experiment `cured`; an optional one removes but a part of the cause, and says little when it fails.
    """
    as_predicted, cures = event.get("result") == event.get("expect"), _cures(event)
    kind = "placebo" if event.get("placebo") else "experiment"
    if cures and event.get("result") == DIVERGED:  # without some samples a loss is another one
        bits = 0.0 if str(event.get("arm")).startswith("leave-rows-out") else -HINT
        text = f"{kind} {event.get('arm')}: finite, with a loss far above the run's own, which proves nothing"
        return Evidence(text=text, bits=bits)
    if as_predicted:
        bits = DECISIVE if cures else HINT if cured else 0.0
    else:
        bits = -DECISIVE if not event.get("optional") else -HINT if cures and not cured else 0.0
    verb = "as predicted" if as_predicted else f"but {event.get('expect')} was predicted"
    return Evidence(text=f"{kind} {event.get('arm')}: {event.get('result')}, {verb}", bits=bits)
