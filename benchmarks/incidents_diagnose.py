"""How often `finitune diagnose --case` names the cause of a public incident.

    python benchmarks/incidents_diagnose.py [FILE=benchmarks/incidents-dev.jsonl]

A case is framework, model, hardware, log and config, with `fair_input` laid over them; no title, no notes. Right is a
cause in `accept`; incidents that are `decidable: no` are left out. Over `incidents-dev.jsonl` the prior is counted
without the fold that is asked; over another file it is that of the book.

The incidents whose hashed id is divisible by three were kept unread while the rules were written: their score counts,
that of the others is inflated. The taxonomy and `sources/cases` are older and were written with all of them in view,
and the score of the third was printed many times meanwhile (once it decided between two weights), so an incident from
elsewhere is the stricter test. Nothing is trained on either but the prior and the scale of the confidence.
`cases-in-other-words.jsonl`, in the same format, holds cases of our own making.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from finitune.chapter import Chapter
from finitune.diagnosis.cases import FITTED, Scale, inputs_of_case, with_shares
from finitune.diagnosis.ranking import counts, occurrences, rank
from finitune.evidence import STRONG
from finitune.finding import RankedCause
from finitune.observations import meanings

DEV = Path(__file__).parent / "incidents-dev.jsonl"
FOLDS = 10
BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
OPEN = 4.0
"""A second cause within so many bits of the first is still open."""
ABLATIONS = {
    "": "everything",
    "sizes": "sizes: every piece weighs the same",
    "words": "words: what only somebody who writes can say",
    "weigh": "weigh: facts and numbers of the log",
    "foresee": "foresee: what check would have said",
}
SHARPNESS = tuple(step / 10 for step in range(3, 31))
LOWEST = tuple(step / 20 for step in range(8))
HIGHEST = tuple(step / 20 for step in range(12, 20))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An incident with the ranking that was given."""

    incident: dict[str, Any]
    ranked: Sequence[RankedCause]

    @property
    def accepted(self) -> set[str]:
        return {self.incident["cause"], *self.incident.get("accept", ())}

    def right(self, first: int) -> bool:
        return bool(self.accepted & {one.cause for one in self.ranked[:first]})


def incidents(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [row for row in rows if row.get("decidable") != "no"]


def case_of(row: dict[str, Any]) -> dict[str, Any]:
    told = {**row, **row.get("fair_input", {})}
    return {
        "log": told.get("symptom_log"),
        **{key: told.get(key) for key in ("framework", "model", "hardware", "config")},
    }


def digest(row: dict[str, Any]) -> int:
    return int(hashlib.sha256(row["id"].encode()).hexdigest(), 16)


def unseen(row: dict[str, Any]) -> bool:
    return digest(row) % 3 == 0


def answer(row: dict[str, Any], seen: dict[str, float], without: str = "") -> Answered:
    """The ranking, `without` a part of what is weighed: a key of `ABLATIONS`."""
    inputs = inputs_of_case(case_of(row))
    if without == "words":
        observed = {
            name: one for name, one in inputs["observations"].items() if meanings()[name].seen_in != {"written"}
        }
        inputs = {**inputs, "observations": observed}
    asked = Chapter.function
    with patch.object(Chapter, "function", lambda one, name: None if name == without else asked(one, name)):
        ranked = rank(inputs, prior=occurrences(seen))
    if without == "sizes":
        ranked = sorted(ranked, key=lambda one: (-_of_one_size(one), one.cause))
    return Answered(incident=row, ranked=ranked)


def _of_one_size(cause: RankedCause) -> float:
    """Its bits, where every piece of evidence but the prior weighs the same."""
    prior, *terms = cause.evidence
    return prior.bits + sum(math.copysign(STRONG, term.bits) for term in terms if term.bits)


def cross_validated(rows: Sequence[dict[str, Any]], without: str = "") -> Iterator[Answered]:
    """Every row asked with the prior of the other folds; the unseen ones with that of the seen alone."""
    for row in rows:
        fold = digest(row) // 3 % FOLDS
        others = [r for r in rows if not unseen(r) and (unseen(row) or digest(r) // 3 % FOLDS != fold)]
        yield answer(row, dict(Counter(r["cause"] for r in others)), without)


def confidence_of(answered: Answered, scale: Scale) -> float:
    """What would be printed of the first cause."""
    ranked, _ = with_shares(answered.ranked, scale)
    return ranked[0].confidence or 0.0


def fitted(answers: Sequence[Answered]) -> Callable[[int | None], Scale]:
    """The scale that is surprised least by whether the first cause was right, without the answer of that number."""
    right = [one.right(1) for one in answers]
    surprise: dict[tuple[float, float, float], list[float]] = {}
    for sharpness in SHARPNESS:
        plain = Scale(sharpness=sharpness, lowest=0.0, highest=1.0)
        shares = [confidence_of(one, plain) for one in answers]
        for low, high in product(LOWEST, HIGHEST):
            said = [low + (high - low) * share for share in shares]
            surprise[sharpness, low, high] = [
                -math.log2(max(s if true else 1 - s, 1e-9)) for s, true in zip(said, right, strict=True)
            ]

    def best(without: int | None) -> Scale:
        left = {one: sum(terms) - (0.0 if without is None else terms[without]) for one, terms in surprise.items()}
        sharpness, low, high = min(left, key=lambda one: left[one])
        return Scale(sharpness=sharpness, lowest=low, highest=high)

    return best


def table(answers: Sequence[Answered]) -> None:
    lists: dict[str, Callable[[Answered], bool]] = {
        "all": lambda _: True,
        "confirmed": lambda a: a.incident["cause_confidence"].startswith("confirmed"),
        "likely": lambda a: a.incident["cause_confidence"] == "likely",
        "disputed": lambda a: a.incident["cause_confidence"] == "disputed",
        "fully decidable": lambda a: a.incident["decidable"] == "yes",
        "confirmed, fully decidable": lambda a: (
            a.incident["decidable"] == "yes" and a.incident["cause_confidence"].startswith("confirmed")
        ),
    }
    for name, belongs in lists.items():
        chosen = [one for one in answers if belongs(one)]
        if not chosen:
            continue
        first, third = (sum(one.right(k) for one in chosen) for k in (1, 3))
        causes = {one.incident["cause"] for one in chosen}
        macro = [
            sum(one.right(1) for one in of) / len(of)
            for of in ([one for one in chosen if one.incident["cause"] == cause] for cause in causes)
        ]
        print(
            f"  {name:28} n {len(chosen):4}   first {first:3} ({first / len(chosen):4.0%})   "
            f"in three {third:3} ({third / len(chosen):4.0%})   "
            f"macro over {len(causes):2} causes {sum(macro) / len(macro):4.0%}"
        )
    disputed = [one for one in answers if lists["disputed"](one)]
    open_ones = sum(len(one.ranked) > 1 and one.ranked[0].bits - one.ranked[1].bits < OPEN for one in disputed)
    if disputed:
        print(f"  disputed with a second cause within {OPEN:g} bits: {open_ones} of {len(disputed)}")


def ablation(rows: Sequence[dict[str, Any]]) -> None:
    """What each part of the evidence carries: first places and places in the first three without it."""
    print("without a part of the evidence: first and in three, of the two thirds and of the third kept unread")
    for without, what in ABLATIONS.items():
        answers = list(cross_validated(rows, without))
        parts = [[a for a in answers if unseen(a.incident) is of_third] for of_third in (False, True)]
        counted = [(len(part), *(sum(a.right(k) for a in part) for k in (1, 3))) for part in parts]
        shown = "   ".join(f"n {n:3}  first {first:3}  in three {third:3}" for n, first, third in counted)
        print(f"  {what:44} {shown}")


def reliability(title: str, shares: Sequence[tuple[float, bool]]) -> None:
    print(f"{title}: confidence in the first cause against how often it was right")
    error = 0.0
    for low, high in pairwise(BINS):
        inside = [(share, right) for share, right in shares if low <= share < high or share == high == 1.0]
        if inside:
            said = sum(share for share, _ in inside) / len(inside)
            was = sum(right for _, right in inside) / len(inside)
            error += abs(said - was) * len(inside) / len(shares)
            print(f"  {low:3.0%} to {high:4.0%}   n {len(inside):4}   said {said:4.0%}   was {was:4.0%}")
    print(f"  expected calibration error {error:.3f}")


def main() -> int:
    path = Path(sys.argv[1].removeprefix("FILE=")) if len(sys.argv) > 1 else DEV
    rows = incidents(path)
    if path.resolve() != DEV.resolve():
        seen: dict[str, float] = dict(counts())
        answers = [answer(row, seen) for row in rows]
        print(f"{path.name}: prior of the book, {len(rows)} incidents")
        table(answers)
        reliability(f"as printed, {_written(FITTED)}", _said(answers, FITTED))
        return 0
    answers = list(cross_validated(rows))
    known = [one for one in answers if not unseen(one.incident)]
    new = [one for one in answers if unseen(one.incident)]
    print(f"{path.name}: {len(rows)} incidents, {FOLDS}-fold")
    table(answers)
    print("two thirds, read while the rules were written (inflated)")
    table(known)
    print("one third, kept unread: the figure that counts")
    table(new)
    scale = fitted(new)
    said = [shown for index, one in enumerate(new) for shown in _said([one], scale(index))]
    ablation(rows)
    reliability(f"unseen third, each under the scale of the others (of all: {_written(scale(None))})", said)
    return 0


def _written(scale: Scale) -> str:
    return f"sharpness {scale.sharpness:g}, between {scale.lowest:g} and {scale.highest:g}"


def _said(answers: Iterable[Answered], scale: Scale) -> list[tuple[float, bool]]:
    return [(confidence_of(one, scale), one.right(1)) for one in answers]


if __name__ == "__main__":
    sys.exit(main())
