"""The rows of an attempt that print a loss or a gradient norm, laid out by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from finitune.sources.logs.attempt import Attempt, Trace

ABSENT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Aligned by step, float64; `has_loss` and `has_norm` say where there is a number. What is absent counts as 1.0."""

    steps: npt.NDArray[np.int64]
    loss: npt.NDArray[np.float64]
    norm: npt.NDArray[np.float64]
    has_loss: npt.NDArray[np.bool_]
    has_norm: npt.NDArray[np.bool_]


def rows_of(attempt: Attempt) -> Rows:
    loss, norm = attempt.trace("loss"), attempt.trace("grad_norm")
    steps = np.sort(np.concatenate((np.asarray(loss.steps), np.asarray(norm.steps))), kind="stable")
    steps = steps[np.diff(steps, prepend=-1) > 0]  # as np.union1d, which takes no advantage of their order
    return Rows(
        steps=steps,
        loss=loss.at(steps, ABSENT),
        norm=norm.at(steps, ABSENT),
        has_loss=loss.has(steps),
        has_norm=norm.has(steps),
    )


def place_at(attempt: Attempt, trace: Trace, step: int) -> str:
    line = trace.line_at(step)
    return f"{attempt.file}:{line}" if line else attempt.file  # of a file that is no text only the file is known


def counted(count: int, noun: str = "row") -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
