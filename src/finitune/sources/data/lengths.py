"""How many tokens rows, their prompts and their targets have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from finitune.facts import Ints, Labels

MOST = 95
"""Percent of the rows that are no longer than this."""


def of(labels: Labels) -> Iterator[Mapping[str, Any]]:
    """The lengths before truncation, least to most; what is left of the targets, where truncation takes some."""
    whole = labels.supervised if labels.whole is None else labels.whole
    if labels.lengths is not None:
        yield _spread("rows", labels.lengths)
        yield _spread("prompts", np.maximum(labels.lengths - whole, 0))
    yield _spread("targets", whole)
    if labels.whole is not None and (labels.supervised != labels.whole).any():
        yield _spread("targets after truncation", labels.supervised)


def _spread(what: str, values: Ints) -> Mapping[str, Any]:
    most = int(np.percentile(values, MOST, method="nearest"))
    return {"what": what, "least": int(values.min()), "median": int(np.median(values)), f"p{MOST}": most,
            "most": int(values.max())}  # fmt: skip
