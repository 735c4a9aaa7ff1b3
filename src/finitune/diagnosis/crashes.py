"""A crash that was recorded: what it shows, and which causes its message speaks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from finitune.crashes import in_words
from finitune.facts import Model
from finitune.observations import Observation, observed_as
from finitune.sources.logs import messages

NUMBERS = re.compile(
    r"\bnans?\b|\binf\b|infinity|finite|singular|converge|definite|probability|simplex|between 0 and 1|invalid values|"
    r"overflow|underflow|loss scale|diverg|explod|explos|range error|division|numeric",
    re.IGNORECASE,
)
"""What messages say of numbers that a computation cannot go on with, in torch, numpy and programs that check for
themselves.
"""


def is_of_numbers(event: Mapping[str, Any]) -> bool:
    """Whether what training did to the numbers may have led to it, as to no tensor of another shape or type, and to no
    graph that is gone.
    """
    held = any("values" in fact or "learning_rate" in fact for fact in _batch(event))
    return held or NUMBERS.search(str(event.get("text", ""))) is not None


def seen(event: Mapping[str, Any]) -> list[str]:
    """Where it was raised, innermost last, and what the batch held; nothing for an incident of another kind."""
    if event.get("symptom") != "crash":
        return []
    frames = [str(frame) for frame in event.get("frames") or ()]
    return [*(f"raised at {frame}" for frame in frames[-1:]), *_facts(event), *(f"through {f}" for f in frames[-2::-1])]


def observed(event: Mapping[str, Any], model: Model | None = None) -> dict[str, Observation]:
    """The rows of the table of observations that its message and its batch show."""
    text = str(event.get("text", ""))
    found: dict[str, Observation] = {}
    for kind in messages.kinds_in(text):
        found |= observed_as(kind, text)
    for fact in _facts(event):
        if fact.startswith("token "):
            found |= observed_as("token-out-of-range", fact)
        elif fact.startswith("label "):
            found |= observed_as("target-out-of-range", fact)
        elif fact.startswith("id ") and any(_of_tokens(one, model) for one in _batch(event)):
            found |= observed_as("token-out-of-range", fact)
        elif fact.startswith("id "):  # of another table than that of the tokens, as of positions
            found.pop("token-out-of-range", None)
    return found


def _of_tokens(fact: Mapping[str, Any], model: Model | None) -> bool:
    """Whether what was looked up beyond a table lies beyond that of the tokens, by its size."""
    rows = fact.get("rows") if "id" in fact else None
    return model is not None and rows is not None and rows == model.vocabulary != model.max_positions


def _facts(event: Mapping[str, Any]) -> list[str]:
    return in_words(_batch(event))


def _batch(event: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the batch held, as far as it can be read."""
    facts: Any = event.get("batch")
    return [fact for fact in facts if isinstance(fact, dict)] if isinstance(facts, list) else []  # pyright: ignore[reportUnknownVariableType]
