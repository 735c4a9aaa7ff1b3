"""Replace damaged weights by intact ones: a fresh download, or the last good checkpoint.

## What it changes

The files of the model. Nothing that was trained since the last finite checkpoint survives; nothing of value is lost,
because non-finite weights reach everything trained after them.

## When it is safe

When the replacement is checked: compare the published checksum of every file, then run `finitune check` on it. Keep
the damaged files until then.

## References

vllm-project/vllm#53537, openvla/openvla#49.
"""

from __future__ import annotations

import shlex

from finitune.facts import Model
from finitune.finding import Remedy

safety = "advice"


def propose(model: Model | None = None) -> Remedy:
    """The command proves that what was put there is intact; where to get it from only the user knows."""
    path = model.path if model else None
    return Remedy(
        command=shlex.join(["finitune", "check", "--model", path]) if path else None,
    )
