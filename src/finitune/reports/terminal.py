"""Findings and diagnoses as lines for a terminal: aligned, one screen, colour for severity only."""

from __future__ import annotations

import io
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from finitune.diagnosis.side_by_side import Comparison
from finitune.finding import (
    SEVERITIES,
    CheckResult,
    Diagnosis,
    Finding,
    Incident,
    NotChecked,
    RankedCause,
    Remedy,
    as_json,
)
from finitune.recording import Recording
from finitune.reports import sentences as say
from finitune.reports.comparison import lines

WIDTH = 100
"""Longest line that is pleasant to read; narrower terminals get narrower lines."""

INCIDENTS_SHOWN = 3
SEEN_SHOWN = 5
PASSED_NAMED = 8
CHANGES_SHOWN = 20
STYLES = {
    "error": "bold red", "broken": "bold red", "incident": "bold red",
    "warning": "yellow", "at-risk": "yellow", "incomplete": "yellow", "suspicion": "yellow",
    "info": "cyan", "ok": "green", "healthy": "green",
}  # fmt: skip


def text_of(result: Any) -> str:
    """What the command line prints of a result, as plain text."""
    out = Console(file=io.StringIO(), width=WIDTH, highlight=False, markup=False, emoji=False)
    if isinstance(result, CheckResult):
        print_check(result, out)
    elif isinstance(result, Diagnosis):
        print_diagnosis(result, out)
    elif isinstance(result, Comparison):
        return "\n".join(lines(result))
    elif isinstance(result, Recording):
        return "\n".join(_recording(result))
    else:
        print_repair(result, out)
    return cast("io.StringIO", out.file).getvalue().rstrip("\n")


def _recording(recording: Recording) -> Iterator[str]:
    steps = max((len(series) for series in recording.signals.values()), default=0)
    kinds = Counter(str(event.get("event")) for event in recording.events())
    events = ", ".join(f"{kind} ({n:,})" for kind, n in kinds.items()) or "none"
    yield f"{recording.directory}: {say.counted(steps, 'step')} of {say.counted(len(recording.ranks), 'rank')}"
    signals = [name for name, series in recording.signals.items() if len(series)]
    yield f"  signals  {', '.join(signals) or 'none'}"
    yield f"  events   {events}"
    yield from (f"  problem  {problem}" for problem in recording.problems)


def print_check(result: CheckResult, console: Console, *, quiet: bool = False) -> None:
    """Findings by severity, `place: message` with the remedy under each; then what passed and what was not checked.

    `quiet`: the findings alone.
    """
    width = _width(console)
    if quiet:
        for finding in result.findings:
            _print_all(console, _finding(finding, width))
        return
    counts = {s: sum(f.severity == s for f in result.findings) for s in SEVERITIES}
    for line in result.understood:
        _print_all(console, _wrap(line, width, first="", rest="  "))
    table = [("tokens", "least", "median", "95 %", "most"), *(tuple(one.values()) for one in result.lengths)]
    for row in say.columns(table) if result.lengths else ():
        _print(console, f"  {row}")
    found = ", ".join(say.counted(n, s) if s != "info" else f"{n:,} info" for s, n in counts.items() if n)
    _print(console, f"{result.verdict}: {found or 'nothing found'}", styled=result.verdict)
    for severity in SEVERITIES:
        group = [finding for finding in result.findings if finding.severity == severity]
        if group:
            _print(console, "")
            _print(console, severity, styled=severity)
        for finding in group:
            _print_all(console, _finding(finding, width))
    _print(console, "")
    rows = _passed(result) + _left_out(result.not_checked, result.not_asked)
    if result.findings:
        patches = any(((f.remedy and f.remedy.command) or "").endswith(" --patch") for f in result.findings)
        write = "; --apply in place of --patch writes the change, --undo takes it back" if patches else ""
        rows.append(_Row(label="more", text=f"finitune causes NAME and finitune remedies NAME explain more{write}"))
    _print_all(console, _rows(rows, indent=0, width=width))


def print_diagnosis(
    diagnosis: Diagnosis, console: Console, *, run_dir: str | None = None, verbose: bool = False
) -> None:
    """One block per incident; with `verbose` every term of every cause. `run_dir` is where the report can be made."""
    width = _width(console)
    if not diagnosis.incidents:
        looked = f" in {say.counted(diagnosis.steps, 'step')}" if diagnosis.steps else ""
        _print(console, f"healthy: no incident{looked}", styled="healthy")
    shown = diagnosis.incidents if verbose else diagnosis.incidents[:INCIDENTS_SHOWN]
    for position, incident in enumerate(shown):
        if position:
            _print(console, "")
        more = run_dir if position == len(shown) - 1 else None
        for line in incident_lines(incident, run_dir=more, width=width, verbose=verbose):
            _print(console, line, styled=say.steps(incident), style=STYLES[incident.level])
    hidden = diagnosis.incidents[len(shown) :]
    if hidden:
        _print(console, "")
        _print(console, f"{say.counted(len(hidden), 'further incident')}, {say.steps(hidden[0])} and later: --verbose")
    if diagnosis.not_checked:
        _print(console, "")
        _print_all(console, _rows(_left_out(diagnosis.not_checked, {}), indent=0, width=width))


def incident_lines(
    incident: Incident, *, run_dir: str | None = None, width: int = WIDTH, verbose: bool = False
) -> list[str]:
    """The block of one incident; the monitor prints the same lines while the run goes on."""
    rows = [_Row(label="seen" if not at else "and", text=text) for at, text in enumerate(incident.seen[:SEEN_SHOWN])]
    if incident.source == "recording" and (incident.origin is not None or not incident.seen):
        rows.append(_Row(label="first bad value", text=say.first_bad_value(incident.origin, incident.not_located)))
        if incident.symptom.startswith("nonfinite") and (incident.origin is None or incident.origin.is_statement):
            again = f"finitune run --watch-step {incident.step} -- COMMAND watches the step in a second run"
            rows.append(_Row(label="to locate", text=again))
    if incident.source == "recording" and not incident.seen:
        rows.append(_Row(label="repeats", text=say.repeats(incident)))
    rows.append(_Row(label="cause", text=say.why(incident)))
    if incident.causes and not incident.causes[0].proved and len(incident.causes) > 1:
        rows += [_Row(label="or", text=say.or_else(cause)) for cause in incident.causes[1:4]]
    if incident.unlisted is not None:
        rows.append(_Row(label="or", text=f"something that is not in the book ({incident.unlisted:.0%})"))
    if incident.confirm:
        rows.append(_Row(label="to confirm", text=incident.confirm))
    if incident.next_check and incident.causes:
        rows.append(_Row(label="to decide", text=incident.next_check))
    rows += [_Row(label="does not help", text=text) for text in incident.does_not_help]
    rows += _remedies(incident.causes[0].remedies if incident.causes else ())
    if run_dir:
        rows.append(_Row(label="more", text=f"finitune report {shlex.quote(run_dir)}", note=""))
    lines = _wrap(f"{say.steps(incident)}: {say.what_happened(incident)}", width, first="")
    lines += _rows(rows, indent=2, width=width)
    for cause in incident.causes if verbose else ():
        lines += _terms(cause, width)
    return lines


def print_repair(result: Any, console: Console) -> None:
    """What `finitune repair` wrote and what it changed; `result` is its dataclass, with `output` and `changes`."""
    width = _width(console)
    plain: dict[str, Any] = as_json(result)
    plain.pop("schema", None)
    changes: Any = plain.pop("changes", None) or []
    undo: Any = plain.pop("undo", None) or []
    left_out: Any = plain.pop("not_applied", None) or []
    plain.pop("by_hand", None)
    # a patch draws no random numbers, and what is undone has no changes of its own
    hidden = {"diff", "written", *(("seed",) if plain.get("diff") or result.repair == "undo" else ())}
    rows = [_Row(label=k.replace("_", " "), text=say.setting(v)) for k, v in plain.items() if k not in hidden]
    if result.repair != "undo":
        rows.append(_Row(label="changes", text=f"{len(changes):,}"))
    rows += [_Row(label="not applied", text=why) for why in left_out]
    rows += [_Row(label="by hand", text=by_hand(one)) for one in result.by_hand]
    rows += [_Row(label="undo", text=f"finitune repair --undo {shlex.quote(file)}", note="") for file in undo]
    _print_all(console, _rows(rows, indent=0, width=width))
    for change in changes[:CHANGES_SHOWN]:
        _print_all(console, _wrap(_change(change), width, first="  ", rest="    "))
    if len(changes) > CHANGES_SHOWN:
        _print(console, f"  and {len(changes) - CHANGES_SHOWN:,} more: --format json")


def by_hand(healed: Any) -> str:
    """What is to be done by hand, where it is about some samples which, and what it healed."""
    where = f": {'; '.join(healed.places)}" if healed.places else ""
    steps = say.several("step", healed.steps)
    return f"{say.do(healed.remedy)}{where} ({say.remedy_note(healed.remedy)}; {healed.cause}, {steps})"


def _change(change: Any) -> str:
    if not isinstance(change, Mapping):
        return say.setting(change)
    known = cast(Mapping[str, Any], change).items()
    return ", ".join(f"{key.replace('_', ' ')} {say.setting(value)}" for key, value in known if value is not None)


def print_table(rows: Sequence[tuple[str, str, str]], console: Console) -> None:
    """Three columns: a name, a short right-aligned figure, a sentence."""
    first = max((len(name) for name, _, _ in rows), default=0)
    second = max((len(count) for _, count, _ in rows), default=0)
    for name, count, text in rows:
        lead = f"{name:<{first}}  {count:>{second}}  "
        _print_all(console, _wrap(text, _width(console), first=lead, rest=" " * len(lead)))


def _finding(finding: Finding, width: int) -> Iterator[str]:
    place = say.place(finding.where)
    yield from _wrap(f"{place or finding.cause}: {finding.message}", width, first="  ", rest="    ")
    rows = [_Row(label="cause", text=finding.cause)] if place else []
    rows += _remedies([finding.remedy] if finding.remedy else [])
    yield from _rows(rows, indent=4, width=width)


def _terms(cause: RankedCause, width: int) -> Iterator[str]:
    """The audit trail of one cause: prior, evidence, sum, and what was not asked."""
    yield ""
    yield f"  {cause.cause}, {say.certainty(cause)}: {say.bits(cause.bits)} bits"
    for weight, text in say.terms(cause):
        lead = f"    {weight:>6}  "
        yield from _wrap(text, width, first=lead, rest=" " * len(lead))
    if cause.not_asked:
        yield from _wrap(f"not asked: {', '.join(cause.not_asked)}", width, first=" " * 12, rest=" " * 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A label and its text. A row with a `note` is a command: never broken, so that it can be copied."""

    label: str
    text: str
    note: str | None = None


def _remedies(remedies: Sequence[Remedy]) -> list[_Row]:
    rows: list[_Row] = []
    for position, remedy in enumerate(remedies):
        rows.append(_Row(label="or do" if position else "do", text=say.do(remedy), note=f"({say.remedy_note(remedy)})"))
        if remedy.patch and remedy.command:
            rows.append(_Row(label="by", text=remedy.command, note=""))
    return rows


def _passed(result: CheckResult) -> list[_Row]:
    """The causes that passed, and those that are about something else than this run."""
    rows: list[_Row] = []
    other = "other " if result.findings else ""
    for label, names in (("passed", result.passed), ("nothing to say", result.nothing_to_say)):
        many = len(names) > PASSED_NAMED
        text = f"{len(names)} {other}causes (named by --format json)" if many else ", ".join(names)
        rows += [_Row(label=label, text=text)] if names else []
    return rows


def _left_out(not_checked: Sequence[NotChecked], not_asked: Mapping[str, Sequence[str]]) -> list[_Row]:
    """What was not there, with the number of causes that wait for it; what one cause alone lacks on its own line."""
    inputs: list[str] = []
    own: list[str] = []
    for entry in not_checked:
        waiting = not_asked.get(entry.input, ())
        if entry.why.partition(": ")[0] in waiting:
            own.append(entry.why)
        else:
            inputs.append(f"{entry.input} ({entry.why}{f', {len(waiting)} causes' if len(waiting) > 1 else ''})")
    rows = [_Row(label="not checked", text="; ".join(inputs))] if inputs else []
    return rows + [_Row(label="" if at or rows else "not checked", text=why, note="") for at, why in enumerate(own)]


def _rows(rows: Sequence[_Row], *, indent: int, width: int) -> list[str]:
    """Label and text in two columns."""
    column = max((len(row.label) for row in rows), default=0)
    lines: list[str] = []
    for row in rows:
        lead = f"{'':{indent}}{row.label:<{column}}  "
        if row.note is None:
            lines += _wrap(row.text, width, first=lead)
            continue
        text = say.printable(row.text)
        fits = len(lead) + len(text) + 3 + len(row.note) <= width
        note = [" " * len(lead) + row.note] if row.note else []
        lines += [f"{lead}{text}   {row.note}".rstrip()] if fits else [lead + text, *note]
    return lines


def _wrap(text: str, width: int, *, first: str, rest: str | None = None) -> list[str]:
    """Lines of at most `width` characters; words are never cut, because names are made to be copied."""
    rest = " " * len(first) if rest is None else rest
    return textwrap.wrap(
        say.printable(text), max(width, 40), initial_indent=first, subsequent_indent=rest,
        break_long_words=False, break_on_hyphens=False,
    ) or [first]  # fmt: skip


def _width(console: Console) -> int:
    return min(console.width, WIDTH)


def _print(console: Console, line: str, *, styled: str = "", style: str | None = None) -> None:
    """One line; its beginning, when it is `styled`, in the colour of the severity."""
    text = Text(line)
    if styled and line.startswith(styled):
        text.stylize(style or STYLES[styled], 0, len(styled))
    console.print(text, soft_wrap=True)


def _print_all(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        _print(console, line)
