"""What a trainer prints beside what was: a finite number for steps of which one was not finite is decoded.

transformers leaves non-finite losses out of the mean that it prints, so NaN becomes 0.0. DeepSpeed writes -1 for the
norm of a parameter group that is not finite, squares, sums and takes the root: 1.0 with one group, 1.414 with two.
Where transformers keeps them (`logging_nan_inf_filter=False`, which Unsloth has by default) it empties its sum by
taking it from itself, so one NaN is printed for every step to the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from finitune.series import Series

MOST_GROUPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Untruth:
    """A printed number, the value of a step that it stands for and does not show, and all of these steps."""

    printed: float
    true: float
    steps: list[int]
    text: str

    @property
    def true_is_finite(self) -> bool:
        return math.isfinite(self.true)


def untruth(name: str, printed: Any, series: Series, *, since: int) -> Untruth | None:
    """Compare what is printed as `name` for the steps after `since` with what was; None where nothing is hidden."""
    if not isinstance(printed, int | float):
        return None
    new = series.since(since).pairs()
    if math.isnan(printed):
        return _stuck(name, printed, new, series.until(since))
    if not math.isfinite(printed):
        return None
    bad = [(step, true) for step, true in new if not math.isfinite(true)]
    if not bad:
        return None
    step, true = bad[0]
    text = f"the trainer shows {name} {printed:.4g}; the {name.replace('_', ' ')} of step {step} was {true}"
    groups = groups_in(printed) if name == "grad_norm" else None
    if groups:
        written = f"{groups} parameter groups" if groups > 1 else "1 parameter group"
        text += f" ({printed:.4g} is how DeepSpeed writes that, with {written})"
    return Untruth(printed=printed, true=true, steps=[step for step, _ in bad], text=text)


def _stuck(name: str, printed: float, new: list[tuple[int, float]], before: Series) -> Untruth | None:
    """NaN for steps that were all finite, after one that was not."""
    if not new or not all(math.isfinite(true) for _, true in new):
        return None
    last = before.steps[~np.isfinite(before.values)].max(initial=-1)
    if last < 0:
        return None
    step, true = new[-1]
    text = f"the trainer shows {name} nan; the {name.replace('_', ' ')} of step {step} was {true:.4g}"
    text += f" (the nan of step {last} is in its sum, and stays there)"
    return Untruth(printed=printed, true=true, steps=[step for step, _ in new], text=text)


def groups_in(norm: float) -> int | None:
    """How many groups of norm -1 give this global norm; None for a number that is no such root."""
    groups = round(norm * norm)
    return groups if 1 <= groups <= MOST_GROUPS and math.isclose(norm, math.sqrt(groups), rel_tol=1e-6) else None
