"""Several runs beside each other as a page: what each came to, their curves in the same charts, what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from finitune.diagnosis.side_by_side import Comparison, Side
from finitune.reports import charts
from finitune.reports.comparison import notes, rows
from finitune.reports.html import Picture, Section, Tone, render

TONES: Mapping[str, Tone] = {"incident": "bad", "suspect": "plain", "healthy": "good"}
CURVES = {"loss": "Loss", "grad_norm": "Gradient norm before clipping"}


def page(comparison: Comparison) -> str:
    """The runs as HTML, by the template of every page."""
    runs = comparison.runs
    bad = sum(one.verdict == "incident" for one in runs)
    title = f"{len(runs)} runs, {bad or 'none'} with an incident"
    sections = [
        Section(title="What each came to", table=list(rows(comparison))),
        *_curves(runs, comparison.differ_from),
    ]
    return render(title, sections, text="\n\n".join(notes(comparison)), tone=TONES[comparison.verdict])


def _curves(runs: Sequence[Side], differ_from: int | None) -> list[Section]:
    """One chart for each signal that one of the runs has, with a line for each run."""
    names = _names(runs)
    panels: list[charts.Panel] = []
    for signal, title in CURVES.items():
        series = {name: one.signals[signal] for name, one in zip(names, runs, strict=True) if one.signals.get(signal)}
        log = signal == "grad_norm" or any(map(charts.wide, series.values()))
        if series:
            panels.append(charts.Panel(series=series, scale="log" if log else "linear", title=title))
    if not panels:
        return []
    where = "" if differ_from is None else " The dashed line is the first step at which losses differ."
    caption = f"Crosses on the upper edge are steps whose value was not finite.{where}"
    marks = [] if differ_from is None else [differ_from]
    return [Section(title="Curves", pictures=[Picture(svg=charts.lines(panels, marks=marks), caption=caption)])]


def _names(runs: Sequence[Side]) -> list[str]:
    """The last part of each path where those differ, else a number before it."""
    last = [Path(one.run).name for one in runs]
    return last if len(set(last)) == len(last) else [f"{at}: {name}" for at, name in enumerate(last, start=1)]
