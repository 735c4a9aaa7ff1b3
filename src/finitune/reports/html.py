"""One self-contained HTML page made of sections: no network, no script, light and dark, fit to print."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from finitune import __version__
from finitune.reports.sentences import printable

Row = Sequence[str]
Tone = Literal["good", "bad", "plain"]

_NUMERIC = re.compile(r"[+-]?[\d,]+(\.\d+)?(e[+-]?\d+)?( ?%)?|nan|-?inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A chart already drawn: `svg` is trusted and inserted as it is, `caption` is not."""

    svg: str
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a page; whatever is empty is left out.

    `text`: paragraphs, separated by empty lines. `table`: rows of cells, the first row is the head.
    """

    title: str
    text: str = ""
    table: Sequence[Row] = ()
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A labelled line of the first screen; `command` is set in type that invites copying."""

    label: str
    text: str = ""
    command: str = ""


def render(
    title: str,
    sections: Sequence[Section],
    *,
    subject: str = "",
    text: str = "",
    lines: Sequence[Line] = (),
    tone: Tone = "plain",
) -> str:
    """The HTML of a page: `title`, an introduction `text` and labelled `lines`, then the `sections`.

    `subject` is the small line above the title, for instance the directory of a run. `tone` colours the title's mark.
    """
    return _template().render(
        title=title, subject=subject, paragraphs=_paragraphs(text), lines=lines, tone=tone,
        sections=[_parts(section) for section in sections], version=__version__,
    )  # fmt: skip


def _parts(section: Section) -> Mapping[str, object]:
    """What the template shows of a section."""
    return {
        "title": section.title,
        "paragraphs": _paragraphs(section.text),
        **_columns(section.table),
        "pictures": [{"svg": Markup(picture.svg), "caption": picture.caption} for picture in section.pictures],  # noqa: S704
    }


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def _columns(table: Sequence[Row]) -> Mapping[str, object]:
    """Head and rows as (cell, is a number) pairs; a column is numeric when every cell that it fills is."""
    head, rows = (table[0], table[1:]) if table else ((), ())
    width = max(map(len, table), default=0)
    columns = [[row[i] for row in rows if i < len(row) and row[i]] for i in range(width)]
    numeric = [bool(cells) and all(_NUMERIC.fullmatch(cell.strip()) for cell in cells) for cells in columns]
    return {
        "head": list(zip(head, numeric, strict=False)),
        "rows": [list(zip(row, numeric, strict=False)) for row in rows],
    }


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = (files("finitune.reports") / "template.html").read_text(encoding="utf-8")
    return environment.from_string(source, globals={"printable": printable})
