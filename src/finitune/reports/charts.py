"""Charts as inline SVG: text stays text, colours are CSS variables of the page, non-finite values always show."""

# The stubs of matplotlib leave parameters without types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from finitune.facts import MAX_FLOAT16, Floats
from finitune.reports.sentences import figure, printable
from finitune.series import Series

Scale = Literal["linear", "log", "log2"]

COLUMNS = 600
"""Points kept per chart: per column the smallest and the largest value, so that no spike is lost."""

NONFINITE_SHOWN = 2000
"""Above this many non-finite steps only the first of each column is drawn."""

NAMED = 1000
"""So many rows of a profile say their name where they are pointed at."""

LARGEST = 1e300
"""Values are drawn no larger than this, so that margins and ticks stay finite."""

_LOG_SPREAD = 1e3
_LABELS_SHOWN = 30
_LABEL_LENGTH = 44
_STYLES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))

# Colours that never occur otherwise; after drawing each becomes `var(--name)`.
_COLOURS = {
    "ink": "#010101", "muted": "#010102", "grid": "#010103", "bad": "#010104",
    "c0": "#010110", "c1": "#010111", "c2": "#010112", "c3": "#010113",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes: label -> Series, drawn together; `title` stands above."""

    series: Mapping[str, Series]
    title: str = ""
    scale: Scale = "linear"


def lines(panels: Sequence[Panel], *, marks: Sequence[int] = ()) -> str:
    """Values over steps, the panels above each other on one axis of steps; `marks` are steps with a vertical line.

    Values are thinned to `COLUMNS` columns that keep every minimum and maximum. A non-finite value breaks the
    line and is marked by a cross on the upper edge.
    """

    def draw(drawing: Figure) -> None:
        column: Any = drawing.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axes, panel in zip(column, panels, strict=True):
            for step in marks:
                axes.axvline(float(step), color=_COLOURS["bad"], linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
            _draw_panel(axes, panel)
        column[-1].xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
        column[-1].xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        column[-1].set_xlabel("step")

    return _svg(draw, width=9.2, height=0.35 + 1.75 * len(panels))


def profile(
    layers: Sequence[tuple[str, float, int]],
    *,
    limit: float | None = MAX_FLOAT16,
    origin: str | None = None,
    label: str = "largest magnitude in the captured step",
) -> str:
    """A magnitude per module, in forward order from top to bottom, against `limit` where there is one.

    `layers` holds module name, magnitude and number of non-finite elements; modules with any are crossed, and the
    `origin` is a diamond where it is none of them. Pointed at, each row says its name and its numbers.
    """
    names = {f"row-{row}": _said(*layer) for row, layer in enumerate(layers[:NAMED])}

    def draw(drawing: Figure) -> None:
        axes = drawing.add_subplot()
        peaks = _drawn(np.array([peak for _, peak, _ in layers]), "log")
        usable = peaks[np.isfinite(peaks)]
        edge = math.log10(limit) if limit is not None else float(usable.max(initial=0.0))
        low, high = float(usable.min(initial=0.0)) - 0.3, float(usable.max(initial=edge)) + 0.9
        rows = np.arange(len(layers))
        bad = np.array([count > 0 or not math.isfinite(peak) for _, peak, count in layers], dtype=bool)
        ends = np.where(np.isfinite(peaks), peaks, low)
        axes.set_xlim(low, high)
        axes.hlines(rows, low, ends, color=_COLOURS["c0"], linewidth=1.0, alpha=0.45)
        axes.plot(ends[~bad], rows[~bad], linestyle="none", marker="o", markersize=3, color=_COLOURS["c0"])
        axes.plot(ends[bad], rows[bad], linestyle="none", marker="x", markersize=5, color=_COLOURS["bad"])
        at = next((row for row, (name, _, _) in enumerate(layers) if name == origin and not bad[row]), None)
        if at is not None:
            axes.plot([ends[at]], [at], linestyle="none", marker="D", markersize=5, color=_COLOURS["bad"])
        for row in range(len(names)):  # nothing to see, but wide enough to point at
            axes.plot([low, high], [row, row], color=_COLOURS["c0"], alpha=0.0, linewidth=6, gid=f"row-{row}")
        if limit is not None:
            axes.axvline(edge, color=_COLOURS["bad"], linewidth=0.9, linestyle=(0, (2, 2)))
            above = axes.get_xaxis_transform()
            most = f"largest float16, {figure(limit)} "
            axes.text(edge, 1.0, most, transform=above, ha="right", va="bottom", color=_COLOURS["bad"])
        ticks = _ticks(low, high, "log")
        axes.set_xticks([position for position, _ in ticks], [text for _, text in ticks])
        axes.set_ylim(len(layers) - 0.4, -0.6)
        labelled = _labelled(layers, bad, origin)
        axes.set_yticks(labelled, [_short(layers[row][0]) for row in labelled])
        for row, tick in zip(labelled, axes.get_yticklabels(), strict=True):
            if bad[row] or row == at:
                tick.set_color(_COLOURS["bad"])
        axes.set_xlabel(label)
        axes.grid(visible=False, axis="y")

    return _svg(draw, width=9.2, height=min(max(0.2 * min(len(layers), 34) + 0.8, 1.6), 7.6), names=names)


def _said(name: str, peak: float, bad: int) -> str:
    return f"{printable(name) or 'the whole model'}: {figure(peak)}" + (f", {bad:,} non-finite values" if bad else "")


def thin(series: Series) -> tuple[Floats, Floats]:
    """At most a few thousand points of `series`: first, last, extremes per column, and the non-finite ones."""
    steps, values = series.steps.astype(np.float64), series.values
    if len(steps) <= 2 * COLUMNS:
        return steps, values
    column = ((steps - steps[0]) / (steps[-1] - steps[0] + 1.0) * COLUMNS).astype(np.int64)
    bad = ~np.isfinite(values)
    keep = np.zeros(len(steps), dtype=bool)
    keep[[0, -1]] = True
    finite_at, bad_at = np.flatnonzero(~bad), np.flatnonzero(bad)
    by_value = finite_at[np.lexsort((values[finite_at], column[finite_at]))]
    keep[by_value[_firsts(column[by_value])]] = True
    keep[by_value[::-1][_firsts(column[by_value[::-1]])]] = True
    keep[bad_at if len(bad_at) <= NONFINITE_SHOWN else bad_at[_firsts(column[bad_at])]] = True
    return steps[keep], values[keep]


def _firsts(groups: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """True where a new group begins."""
    return np.concatenate([np.ones(min(len(groups), 1), dtype=bool), groups[1:] != groups[:-1]])


def wide(series: Series) -> bool:
    """True when the range of positive values is so wide that a linear axis would hide all but the largest."""
    finite = series.values[np.isfinite(series.values)]
    return bool(len(finite)) and bool(finite.min() > 0) and bool(finite.max() > _LOG_SPREAD * np.median(finite))


def _draw_panel(axes: Axes, panel: Panel) -> None:
    kept = {label: thin(one) for label, one in panel.series.items() if one}
    heights = {label: _drawn(values, panel.scale) for label, (_, values) in kept.items()}
    finite = np.concatenate([drawn[np.isfinite(drawn)] for drawn in heights.values()] or [np.empty(0)])
    _set_scale(axes, panel.scale, finite)
    for position, (label, (steps, values)) in enumerate(kept.items()):
        bad = steps[~np.isfinite(values)]
        mark = _COLOURS["bad"] if len(kept) == 1 else _COLOURS[f"c{position % 4}"]
        _draw_line(axes, steps, heights[label], label=printable(label), position=position)
        _draw_crosses(axes, bad, colour=mark, position=position)
    if panel.title:
        axes.set_title(printable(panel.title), loc="left", fontsize=8, color=_COLOURS["ink"])
    if len(kept) > 1 or not panel.title:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, borderpad=0.2, handlelength=2.5)
    if not len(finite):
        axes.set_yticks([])
        text = "no value to draw" if kept else "nothing recorded"
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=_COLOURS["muted"])


def _draw_line(axes: Axes, steps: Floats, heights: Floats, *, label: str, position: int) -> None:
    style: Any = _STYLES[position % len(_STYLES)]
    colour = _COLOURS[f"c{position % 4}"]
    few = int(np.isfinite(heights).sum()) <= 60
    axes.plot(
        steps, heights, color=colour, linestyle=style, linewidth=1.3, label=label,
        marker="o" if few else "", markersize=2.4,
    )  # fmt: skip


def _draw_crosses(axes: Axes, steps: Floats, *, colour: str, position: int) -> None:
    """Non-finite values, on the upper edge; one row of crosses per line."""
    if len(steps):
        edge: Any = axes.get_xaxis_transform()
        axes.plot(
            steps, np.full(len(steps), 0.965 - 0.07 * (position % 4)), linestyle="none", marker="x", markersize=5,
            markeredgewidth=1.4, color=colour, transform=edge, clip_on=False,
        )  # fmt: skip


def _set_scale(axes: Axes, scale: Scale, finite: Floats) -> None:
    """Limits and ticks; `finite` are the values as drawn, logarithms for a logarithmic scale."""
    if not len(finite):
        return
    low, high = float(finite.min()), float(finite.max())
    if scale == "linear":
        margin = (high / 2 - low / 2) * 0.16 or max(abs(high) * 0.1, 0.1)
        axes.set_ylim(low - margin, high + margin)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.4g}"))
        return
    margin = max((high - low) * 0.12, 0.15 if scale == "log" else 1.0)
    axes.set_ylim(low - margin, high + margin)
    ticks = _ticks(low - margin, high + margin, scale)
    axes.set_yticks([position for position, _ in ticks], [label for _, label in ticks])


def _drawn(values: Floats, scale: Scale) -> Floats:
    """Where values lie on the axis: logarithms are taken here, so that no range is too wide for the axis.

    NaN, which is not drawn, for non-finite values and for what has no logarithm.
    """
    if scale == "linear":
        return np.where(np.isfinite(values), np.clip(values, -LARGEST, LARGEST), np.nan)
    usable = np.isfinite(values) & (values > 0)
    logarithm = np.log10 if scale == "log" else np.log2
    return logarithm(values, where=usable, out=np.full(len(values), np.nan))


def _ticks(low: float, high: float, scale: Scale) -> list[tuple[float, str]]:
    """At most seven round numbers between two logarithms; 1, 2, 5 where there are too few powers of ten."""
    whole = range(math.ceil(low), math.floor(high) + 1)
    if scale == "log2":
        return [(float(n), f"2^{n}") for n in whole if n % (len(whole) // 7 + 1) == 0]
    if len(whole) >= 3:
        return [(float(n), _decimal(1, n)) for n in whole if n % (len(whole) // 7 + 1) == 0]
    finer = [(n + math.log10(m), _decimal(m, n)) for n in range(math.floor(low), whole.stop) for m in (1, 2, 5)]
    return [(position, label) for position, label in finer if low <= position <= high]


def _decimal(digit: int, exponent: int) -> str:
    """`digit` times ten to the `exponent`, written out where that is short."""
    return f"{digit * 10.0**exponent:g}" if -3 <= exponent <= 4 else f"{digit}e{exponent}"


def _labelled(layers: Sequence[tuple[str, float, int]], bad: npt.NDArray[np.bool_], origin: str | None) -> list[int]:
    """Rows that get a name: all of them when few, else the origin, the first bad ones and the highest."""
    if len(layers) <= _LABELS_SHOWN + 4:
        return list(range(len(layers)))
    wanted = [row for row, (name, _, _) in enumerate(layers) if name == origin]
    wanted += [int(row) for row in np.flatnonzero(bad)[:3]] + [0, len(layers) - 1]
    peaks = [peak if math.isfinite(peak) else 0.0 for _, peak, _ in layers]
    wanted += sorted(range(len(layers)), key=lambda row: -peaks[row])
    apart = max(1, len(layers) // _LABELS_SHOWN)
    chosen: list[int] = []
    for row in wanted:
        if all(abs(row - other) >= apart for other in chosen):
            chosen.append(row)
    return sorted(chosen)


def _short(name: str) -> str:
    """A name that fits beside the axis: the middle goes, because both ends tell modules apart."""
    name = printable(name)
    half = _LABEL_LENGTH // 2 - 1
    return name if len(name) <= _LABEL_LENGTH else f"{name[:half]}..{name[-half:]}"


def _svg(draw: Callable[[Figure], None], *, width: float, height: float, names: Mapping[str, str] | None = None) -> str:
    """Draw a figure of `width` by `height` inches and return one `<svg>` element without outside references.

    `names` are shown where the pointer rests on the group of that id.
    """
    settings: Any = {
        "axes.edgecolor": _COLOURS["grid"], "axes.labelcolor": _COLOURS["muted"], "axes.grid": True,
        "axes.spines.right": False, "axes.spines.top": False, "axes.axisbelow": True, "axes.unicode_minus": False,
        "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 8, "grid.color": _COLOURS["grid"],
        "grid.linewidth": 0.6, "legend.labelcolor": _COLOURS["ink"], "svg.fonttype": "none",
        "svg.hashsalt": "finitune", "text.color": _COLOURS["ink"], "text.parse_math": False,
        "xtick.color": _COLOURS["grid"], "xtick.labelcolor": _COLOURS["muted"], "xtick.major.size": 0,
        "xtick.minor.size": 0, "ytick.color": _COLOURS["grid"], "ytick.labelcolor": _COLOURS["muted"],
        "ytick.major.size": 0, "ytick.minor.size": 0,
    }  # fmt: skip
    out = io.StringIO()
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs missing from the measuring font: the browser's font has them
        drawing = Figure(figsize=(width, height), layout="constrained")
        draw(drawing)
        drawing.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = _for_page(out.getvalue())
    said = {group: f"<g><title>{escape(name)}</title>" for group, name in (names or {}).items()}
    return re.sub(r'<g id="(row-\d+)">', lambda found: said.get(found[1], found[0]), svg) if said else svg


def _for_page(svg: str) -> str:
    """Keep the element alone, with sizes and colours left to the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style type.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"^<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", r'<svg \1 role="img">', svg)
    svg = re.sub(r' id="(?:figure|axes|patch|line2d|text|[xy]tick|matplotlib|legend|LineCollection)[^"]*"', "", svg)
    svg = svg.replace("xlink:href=", "href=").replace("font-family: 'DejaVu Sans', sans-serif; ", "")
    for name, colour in _COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return re.sub(r"\s*\n\s*", " ", svg).strip()
