"""Several runs beside each other, as lines for a terminal and as one HTML page."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

from finitune.diagnosis.side_by_side import Comparison
from finitune.reports import sentences as say

STYLE = "body{font:15px/1.5 system-ui,sans-serif;margin:2em}td,th{text-align:left;padding:.2em 1.5em .2em 0}"
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def lines(comparison: Comparison) -> list[str]:
    """One column for each run, as wide as what stands in it."""
    table = list(_rows(comparison))
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return [*text, "", *_notes(comparison)]


def page(comparison: Comparison) -> str:
    """The same as a page that needs no network and runs no script."""
    body = "".join(
        "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for tag, cell in _tagged(row)) + "</tr>"
        for row in _rows(comparison)
    )
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in _notes(comparison))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>finitune: {len(comparison.runs)} runs</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><style>{STYLE}</style>'
        f"<table>{body}</table>{notes}</html>\n"
    )


def _tagged(row: list[str]) -> Iterator[tuple[str, str]]:
    yield "th", row[0]
    yield from (("td", cell) for cell in row[1:])


def _rows(comparison: Comparison) -> Iterator[list[str]]:
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


def _notes(comparison: Comparison) -> Iterator[str]:
    if comparison.differ_from is None:
        yield "losses: the same at every step that all of them print"
    else:
        yield f"losses: different from step {comparison.differ_from} on"
    if not comparison.settings:
        yield "settings: none is known to be different"


def _cell(value: Any) -> str:
    return "-" if value is None else say.setting(value)
