"""What a crash says of the batch that it died on, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def in_words(facts: Sequence[dict[str, Any]]) -> list[str]:
    """`token 300 of a vocabulary of 256, in sample 2 at position 7`."""
    out: list[str] = []
    for fact in facts:
        if "token" in fact:
            where = f"in sample {fact['sample']} at position {fact['position']}"
            out.append(
                f"token {fact['token']} of a vocabulary of {fact['vocabulary']}, {where} ({fact['name']}){_more(fact)}"
            )
        elif "id" in fact:
            places = (("in sample", fact.get("sample")), ("at position", fact.get("position")))
            where = " ".join(f"{word} {number}" for word, number in places if number is not None)
            label = f"label {fact['id']} of {fact.get('classes')} classes"
            row = f"id {fact['id']} of an embedding of {fact.get('rows')} rows"
            out.append(f"{label if 'classes' in fact else row}, {where}{_more(fact)}")
        elif "values" in fact:
            out.append(f"{fact['name']} holds {fact['values']}, first in sample {fact['sample']}")
        elif "variable" in fact:
            made = f", made by {fact['op']}: {fact['line']}" if "op" in fact else ""
            out.append(f"{fact['variable']} holds {fact['holds']}{made}")
        elif "learning_rate" in fact:
            out.append(f"the learning rate of {fact['optimizer']} is {fact['learning_rate']}")
        elif "inputs" in fact:
            out.append("; ".join(f"{name}: {what}" for name, what in fact["inputs"].items()))
    return out


def _more(fact: dict[str, Any]) -> str:
    """What else is beyond the table: how large it would have to be."""
    beyond = fact.get("beyond")
    if not isinstance(beyond, int) or beyond < 2:
        return ""
    return f", and {beyond - 1} more, the largest {fact.get('largest')}"
