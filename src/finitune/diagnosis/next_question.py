"""The question whose answer is expected to tell most: what decides between the causes that are left.

The posterior over causes, with something that is not in the book, has an entropy; an answer changes it. P(answer |
cause) comes from what chapters declare: the experiments that they predict, the bits that they give to an observation,
the facts from which they foresee. The questions themselves are data (`questions.txt`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from finitune.chapter import Chapter, causes, tells_of
from finitune.evidence import DECISIVE, STRONG
from finitune.finding import RankedCause

UNLISTED = 0.03
"""The prior of something that is not in the book."""
TRUST = 0.5
"""Exponent of the posterior, flatter than the one of the confidence that is printed (`cases`): one asks because the
evidence may mislead. Of twelve rows of the taxonomy (one symptom, several causes) all get its discriminating check with
0.5, and nine with 1.
"""
UNPREDICTED = 0.1
"""Odds of an answer under a cause that says nothing about it, against none of the answers."""
BY_RUN = "finitune run"
"""What a question says that a recorded run answers by itself."""
LEAST = 0.02
"""Bits: what tells less than this is not worth asking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What can be found out. An answer is a set of signs that mean the same: see `questions.txt`."""

    name: str
    ask: str
    how: str = ""
    when: tuple[frozenset[str], ...] = ()
    unless: frozenset[str] = frozenset()
    answers: tuple[tuple[str, ...], ...] = field(default_factory=tuple[tuple[str, ...], ...])

    def fits(self, observed: Collection[str]) -> bool:
        """Is there something that it would explain, and nothing that makes it pointless?"""
        return any(needed <= set(observed) for needed in self.when) and not self.unless & set(observed)

    @property
    def text(self) -> str:
        return f"{self.ask}: {self.how}" if self.how else self.ask


def entropy(shares: Sequence[float]) -> float:
    """Of shares that sum to 1, in bits."""
    return -sum(p * math.log2(p) for p in shares if p > 0)


def expected_information(prior: Sequence[float], likelihoods: Sequence[Sequence[float]]) -> float:
    """Bits by which an answer is expected to lower the entropy of `prior`.

    `likelihoods[answer][cause]`; over the answers they sum to 1 for every cause.
    """
    left = 0.0
    for likelihood in likelihoods:
        joint = [p * each for p, each in zip(prior, likelihood, strict=True)]
        probability = sum(joint)
        if probability > 0:
            left += probability * entropy([p / probability for p in joint])
    return max(0.0, entropy(prior) - left)


def posterior(ranked: Sequence[RankedCause]) -> list[float]:
    """The share of every ranked cause, and at the end that of something that is not in the book."""
    bits = [cause.bits for cause in ranked] + [math.log2(UNLISTED)]
    highest = max(bits)  # so that no power is beyond a float
    weights = [2.0 ** (TRUST * (each - highest)) for each in bits]
    return [weight / sum(weights) for weight in weights]


def likelihoods(answers: Sequence[Sequence[str]], names: Sequence[str]) -> list[list[float]]:
    """P(answer | cause) for every answer, none of them as the last, over `names` and then what is not in the book."""
    odds = [[UNPREDICTED * 2.0 ** _bits(answer, name) for answer in answers] + [1.0] for name in names]
    odds.append([UNPREDICTED] * len(answers) + [1.0])
    return [[own[at] / sum(own) for own in odds] for at in range(len(answers) + 1)]


def best(ranked: Sequence[RankedCause], candidates: Sequence[Question], known: Collection[str] = ()) -> Question | None:
    """The candidate that is expected to tell most; None where none tells anything.

    `known` holds what has been observed or run, so that nobody needs to ask for it again.
    """
    prior, names = posterior(ranked), [cause.cause for cause in ranked]
    rated = [
        (expected_information(prior, likelihoods(_open(q, known), names)), q) for q in candidates if _open(q, known)
    ]
    most, question = max(rated, key=lambda one: one[0], default=(0.0, None))
    return question if most >= LEAST else None


def _open(question: Question, known: Collection[str]) -> list[tuple[str, ...]]:
    """The answers that are still open, each by the signs that are."""
    left = (tuple(sign for sign in answer if sign not in known) for answer in question.answers)
    return [answer for answer in left if answer]


@cache
def questions() -> tuple[Question, ...]:
    """Every question of the table."""
    text = resources.files("finitune.diagnosis").joinpath("questions.txt").read_text(encoding="utf-8")
    return tuple(_sections(text))


def _sections(text: str) -> Iterator[Question]:
    for section in text.split("\n[")[1:]:
        name, _, rest = section.partition("]\n")
        rows = [line.partition(": ")[::2] for line in rest.splitlines() if line.strip()]
        keys: dict[str, list[str]] = {}
        for key, value in rows:
            keys.setdefault(key, []).append(value)
        yield Question(
            name=name,
            ask=keys["ask"][0],
            how=keys.get("how", [""])[0],
            when=tuple(frozenset(value.split()) for value in keys["when"]),
            unless=frozenset(keys.get("unless", ())),
            answers=tuple(tuple(value.split()) for value in keys["answer"]),
        )


def _bits(answer: Sequence[str], name: str) -> float:
    """What the chapter says of the sign that it says most of."""
    said = [bits for sign in answer if (bits := _declared(sign, name))]
    return max(said, key=abs, default=0.0)


@cache
def _declared(sign: str, name: str) -> float:
    """Bits for one sign under the cause `name`, 0 where its chapter says nothing of it."""
    chapter = causes().get(name)
    if chapter is None:
        return 0.0
    kind, _, what = sign.rpartition(":")
    bits = {"arm": _of_arm, "facts": _of_facts}.get(kind, _of_observation)(chapter, what)
    return max(-DECISIVE, min(DECISIVE, bits))  # no answer is impossible under any cause


def _of_observation(chapter: Chapter, slug: str) -> float:
    return next((bits for name, bits, _ in tells_of(chapter) if name == slug), 0.0)


def _of_arm(chapter: Chapter, arm: str) -> float:
    said = [e for e in chapter.declared("experiments") if e.arm.partition("=")[0] == arm]
    cures = [e for e in said if e.expect == "finite" and not e.placebo]
    if cures:
        return STRONG if all(e.optional for e in cures) else DECISIVE
    return -DECISIVE if said else 0.0


def _of_facts(chapter: Chapter, group: str) -> float:
    foresee = chapter.function("foresee")
    read = inspect.signature(foresee).parameters.get(group) if foresee else None
    return STRONG if read is not None and read.default is inspect.Parameter.empty else 0.0


def next_check(
    ranked: Sequence[RankedCause],
    observed: Collection[str],
    facts: Mapping[str, Any],
    experiments: Sequence[Question] | None = None,
) -> str:
    """The one thing to find out next; "" where a cause is proved already.

    `facts` holds groups of facts by name, None where one is not known. `experiments` is None where nothing was
    recorded; else the run has looked for itself, and these are left on its captured step.
    """
    if any(cause.proved for cause in ranked):
        return ""
    fitting = [q for q in questions() if q.fits(observed) and (experiments is None or BY_RUN not in q.how)]
    known = {*observed, *(f"facts:{name}" for name, group in facts.items() if group is not None)}
    chosen = best(ranked, [*(experiments or ()), *fitting], known)
    return chosen.text if chosen else _proof(ranked, recorded=experiments is not None)


MADE = ("experiment ", "placebo ")
"""How the evidence of an experiment begins."""


def _proof(ranked: Sequence[RankedCause], *, recorded: bool) -> str:
    """How the chapter of the first cause would prove it; where nothing speaks for any, what a recording would tell."""
    first = next((cause for cause in ranked if any(term.bits > 0 for term in cause.evidence)), None)
    if first is None or first.cause not in causes():
        return "" if recorded else next(question.text for question in questions() if question.name == "first-bad-value")
    if any(term.text.startswith(MADE) for term in first.evidence):
        return f"the experiments of {first.cause} were made and leave it open: finitune causes {first.cause}"
    return " ".join(causes()[first.cause].sentences("How to prove")[:2])
