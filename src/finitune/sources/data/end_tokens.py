"""Whether rows hold the token that ends an answer, and whether it is a target: what teaches a model to stop.

Rows of conversations and rows whose labels somebody made are judged, where they are whole. Of plain text nobody knows
here whether the trainer appends an end, and whether the text is meant to have one.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from finitune.facts import Ints
from finitune.sources.data.tokenizer import Tokenizer

IGNORED = -100
"""The label that every trainer of the field leaves out of the loss."""

COMPLETE = "complete"
"""The key of rows that a collator made here of a whole conversation, or of a prompt and its completion."""

LAST = 3
"""Tokens of a row among which its end is looked for: templates put a line break behind it."""


class End(IntEnum):
    """Of one row; a cut row, and plain text, is not judged."""

    NOT_JUDGED = 0
    ABSENT = 1
    HELD = 2
    """Nobody has made labels yet."""
    IGNORED = 3
    LEARNED = 4


def of_chat(ids: Ints, tokenizer: Tokenizer) -> End:
    """A conversation as the chat template renders it, whole. A special token of its own may close it."""
    if tokenizer.eos_id is None:
        return End.NOT_JUDGED
    return End.HELD if _closed(ids, tokenizer) else End.ABSENT


def of_labels(ids: Ints, labels: Ints, tokenizer: Tokenizer | None, *, complete: bool) -> End:
    """Labels that somebody made; where none is ignored it may be a text as any, unless it is `complete`."""
    if tokenizer is None or tokenizer.eos_id is None:
        return End.NOT_JUDGED
    ends = ids[1:] == tokenizer.eos_id
    if ends.any():
        return End.LEARNED if (labels[1:][ends] != IGNORED).any() else End.IGNORED
    judged = complete or bool((labels[1:] == IGNORED).any() and (labels[1:] != IGNORED).any())
    return End.NOT_JUDGED if not judged or _closed(ids, tokenizer) else End.ABSENT


def _closed(ids: Ints, tokenizer: Tokenizer) -> bool:
    others = {tokenizer.bos_id, tokenizer.pad_id, tokenizer.unk_id} - {tokenizer.eos_id}
    return any(token in tokenizer.special and token not in others for token in ids[1:][-LAST:].tolist())


@dataclass(slots=True)
class EndTokens:
    """Counts rows by how they end, as long as a file is read."""

    _ends: array[int] = field(default_factory=lambda: array("b"))

    def add(self, end: End) -> None:
        self._ends.append(end)

    def found(self, lengths: Ints, *, made: bool) -> Mapping[str, int] | None:
        """As `Labels.end_tokens` has it; None where no row is judged.

        Rows that were `made` before they came here may have been cut, the longest ones.
        """
        ends: Any = np.array(self._ends, np.int8)
        if made and len(lengths) > 1:
            ends = np.where((lengths == lengths.max()) & (ends == End.ABSENT), End.NOT_JUDGED, ends)
        rows = int(np.count_nonzero(ends != End.NOT_JUDGED))
        if not rows:
            return None
        held, learned, ignored = (int(np.count_nonzero(ends == one)) for one in (End.HELD, End.LEARNED, End.IGNORED))
        found = {"rows": rows, "held": held + learned + ignored}
        if learned or ignored:
            found["learned"] = learned
        return found
