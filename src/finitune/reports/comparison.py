"""Several runs beside each other, as lines for a terminal; the page has the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from finitune.diagnosis.side_by_side import Comparison
from finitune.reports import sentences as say


def lines(comparison: Comparison) -> list[str]:
    """One column for each run, as wide as what stands in it."""
    return [*say.columns(list(rows(comparison))), "", *notes(comparison)]


def rows(comparison: Comparison) -> Iterator[list[str]]:
    """One row for each thing that is compared, its name first."""
    runs = comparison.runs
    yield ["run", *(say.printable(one.run) for one in runs)]
    yield ["verdict", *(one.verdict for one in runs)]
    yield ["steps", *(_cell(one.steps) for one in runs)]
    yield ["first bad step", *(_cell(one.first_bad_step) for one in runs)]
    yield ["symptom", *(_cell(one.symptom) for one in runs)]
    yield ["cause", *(_cell(one.cause) for one in runs)]
    yield ["last loss", *(_cell(one.last_loss) for one in runs)]
    for name, values in comparison.settings.items():
        yield [name, *(say.printable(_cell(value)) for value in values)]


def notes(comparison: Comparison) -> Iterator[str]:
    """From where on the runs differ."""
    if comparison.differ_from is None:
        yield "losses: the same at every step that all of them print"
    else:
        yield f"losses: different from step {comparison.differ_from} on"
    if not comparison.settings:
        yield "settings: none is known to be different"


def _cell(value: Any) -> str:
    return "-" if value is None else say.setting(value)
