"""A plan as text: every choice with its reason, whose it is, and what check has to say of it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence

from finitune.finding import Finding
from finitune.reports.sentences import counted, printable
from finitune.train.plan import Choice, Plan
from finitune.train.settings import Written

WIDTH = 100
REASON = 48
"""Column at which the reasons begin."""


def lines(written: Written, plan: Plan) -> Iterator[str]:
    """The whole plan."""
    what = counted(plan.steps, "step") if plan.steps else "an unknown number of steps"
    yield f"plan for {written.file} on {plan.card}: {what}; nothing is trained"
    for by, title in (("finitune", "chosen"), ("you", "kept as you wrote it")):
        those = [one for one in plan.choices if one.by == by]
        if those:
            yield ""
            yield title
        for one in those:
            yield from _choice(one)
    yield from _findings(plan.findings)
    for one in plan.not_checked:
        yield from _wrapped(f"not checked: {one.input}: {one.why}", indent=0)


def short(plan: Plan) -> Iterator[str]:
    """What a run says of its plan when it begins: what was foreseen, and what is left of it."""
    for one in plan.choices:
        if one.by == "finitune" and one.key in ("embedding_rows", "float32_modules"):
            yield from _choice(one)
    yield from _findings(plan.findings)


def _choice(one: Choice) -> Iterator[str]:
    text = one.value if isinstance(one.value, str) else json.dumps(one.value, default=str)
    head = f"  {one.key:<22} {text}"
    if one.by == "you":
        yield printable(head)
        return
    reason = textwrap.wrap(printable(one.why), WIDTH - REASON)
    if len(head) >= REASON - 1:
        yield printable(head)
    else:
        yield f"{printable(head):<{REASON}}{reason.pop(0)}"
    yield from (" " * REASON + line for line in reason)


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        return
    yield ""
    yield "check says of what is left"
    for one in findings:
        yield from _wrapped(f"{one.severity}: {one.cause}: {one.message}", indent=2)


def _wrapped(text: str, *, indent: int) -> Iterator[str]:
    yield from textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_on_hyphens=False,
    )
