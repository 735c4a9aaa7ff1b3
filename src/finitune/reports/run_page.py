"""A recording and its diagnosis as a page: the first screen, charts, experiments, evidence, events, facts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, cast

from finitune.command_line import masked
from finitune.finding import Diagnosis, Incident, RankedCause, number
from finitune.recording import Recording
from finitune.reports import charts
from finitune.reports import sentences as say
from finitune.reports.html import Line, Picture, Row, Section, Tone, render
from finitune.series import Series

INCIDENTS_SHOWN = 10
CAUSES_SHOWN = 4
ROWS_SHOWN = 200
LAST_DATE = 253_402_300_800
"""Seconds; the first of year 10000, which has no date here."""


def page(recording: Recording, diagnosis: Diagnosis) -> str:
    """The report of one run as HTML: verdict, first bad value, cause and remedy; then everything they rest on."""
    incidents = diagnosis.incidents
    sections = [_signals(recording, incidents)]
    if len(incidents) > 1:
        sections.append(_overview(incidents))
    for incident in incidents[:INCIDENTS_SHOWN]:
        sections += _incident(recording, incident, named=len(incidents) > 1)
    sections += [_timeline(recording), _facts(recording), _not_checked(recording, diagnosis)]
    title, text, lines, tone = _verdict(recording, incidents)
    shown = [section for section in sections if section]
    return render(title, shown, subject=str(recording.directory), text=text, lines=lines, tone=tone)


def _verdict(recording: Recording, incidents: Sequence[Incident]) -> tuple[str, str, list[Line], Tone]:
    """The first screen."""
    last = max((series.last_step for rank in recording.ranks for series in rank.signals.values()), default=-1)
    if not incidents:
        text = f"Steps up to {last:,} were recorded." if last >= 0 else "No step was recorded."
        return "No incident", text, [], "good" if last >= 0 else "plain"
    incident = incidents[0]
    lines = [
        Line(label="first bad value", text=say.first_bad_value(incident.origin, incident.not_located)),
        Line(label="repeats", text=say.repeats(incident)),
        Line(label="cause", text=say.why(incident)),
    ]
    for position, remedy in enumerate(incident.causes[0].remedies if incident.causes else ()):
        lines.append(Line(label="or do" if position else "do", command=say.do(remedy), text=say.remedy_note(remedy)))
    title = f"Incident at {say.steps(incident)}"
    if len(incidents) > 1:
        title = f"{len(incidents)} incidents, the first at {say.steps(incident)}"
    text = say.what_happened(incident)
    return title, text[:1].upper() + text[1:], lines, "bad"


def _signals(recording: Recording, incidents: Sequence[Incident]) -> Section | None:
    """Loss, gradient norm, loss scale and learning rate over the steps."""
    signals = recording.signals
    marks = [incident.step for incident in incidents[: INCIDENTS_SHOWN * 5] if incident.step is not None]
    scales: dict[str, charts.Scale] = {
        "loss": "log" if charts.wide(signals["loss"]) else "linear",
        "grad_norm": "log",
        "loss_scale": "log2",
        "lr": "linear",
    }
    names = {
        "loss": "Loss", "grad_norm": "Gradient norm before clipping", "loss_scale": "Loss scale", "lr": "Learning rate"
    }  # fmt: skip
    panels = [
        charts.Panel(
            series={name: signals[name]},
            scale=scale,
            title=f"{names[name]}{', logarithmic' if scale != 'linear' else ''}. {_nonfinite(signals[name])}",
        )
        for name, scale in scales.items()
        if signals[name]
    ]
    if not panels:
        return None
    caption = "Crosses on the upper edge are steps whose value was not finite. Dashed lines are incidents."
    return Section(title="Signals", pictures=[Picture(svg=charts.lines(panels, marks=marks), caption=caption)])


def _nonfinite(series: Series) -> str:
    steps = [int(step) for step, value in zip(series.steps, series.values, strict=True) if not math.isfinite(value)]
    if not steps:
        return f"All {say.counted(len(series), 'recorded step')} finite."
    return f"Not finite at {say.counted(len(steps), 'step')} of {len(series):,}, the first {steps[0]:,}."


def _overview(incidents: Sequence[Incident]) -> Section:
    rows: list[Row] = [("Step", "Symptom", "First bad value", "Cause")]
    for incident in incidents[:ROWS_SHOWN]:
        cause = f"{incident.causes[0].cause}, {say.certainty(incident.causes[0])}" if incident.causes else "unknown"
        rows.append(
            (say.steps(incident), incident.symptom, say.first_bad_value(incident.origin, incident.not_located), cause)
        )
    return Section(title="Incidents", table=rows, text=_cut(len(incidents), ROWS_SHOWN, "incident"))


def _incident(recording: Recording, incident: Incident, *, named: bool) -> list[Section | None]:
    """Experiments, evidence and the captured step of one incident."""
    suffix = f", {say.steps(incident)}" if named else ""
    event = _event(recording, incident)
    of = (event["rank"], event.get("id")) if event else None
    arms = [e for e in recording.events("arm") if event and _key(e) == of]
    origins = [e for e in recording.events("origin") if event and _key(e) == of]
    causes = incident.causes[:CAUSES_SHOWN]
    pictures = [
        _outputs(origins, incident, half=_in_float16(recording, incident)),
        _gradients(event, incident),
    ]
    drawn = [picture for picture in pictures if picture is not None]
    return [
        Section(title=f"The captured step{suffix}", pictures=drawn) if drawn else None,
        _experiments(arms, suffix),
        *(_evidence(cause, suffix, first=cause is causes[0]) for cause in causes),
    ]


def _event(recording: Recording, incident: Incident) -> Mapping[str, Any]:
    """The recorded event that this incident came from; empty where there is none."""
    for event in recording.events("incident"):
        if event["rank"] == incident.rank and event.get("step") == incident.step:
            return event
    return {}


def _key(event: Mapping[str, Any]) -> tuple[Any, Any]:
    return event["rank"], event.get("incident")


def _experiments(arms: Sequence[Mapping[str, Any]], suffix: str) -> Section | None:
    rows: list[Row] = [("Changed in the captured step", "Cause on trial", "Expected", "Observed", "")]
    for arm in arms:
        notes = ["placebo"] if arm.get("placebo") is True else []
        notes += ["against the cause"] if arm.get("result") != arm.get("expect") else []
        rows.append((*(str(arm.get(key, "")) for key in ("arm", "cause", "expect", "result")), ", ".join(notes)))
    text = (
        "Each row ran the captured step again with one thing changed. A placebo changes something of the same kind "
        "that the cause calls innocent, so it must not help."
    )
    return Section(title=f"Experiments{suffix}", text=text, table=rows) if arms else None


def _evidence(cause: RankedCause, suffix: str, *, first: bool) -> Section:
    rows: list[Row] = [("Evidence", "Bits")]
    rows += [(text, weight) for weight, text in say.terms(cause)]
    rows.append(("sum", say.bits(cause.bits)))
    text = "One bit doubles the odds of the cause, minus one halves them." if first else ""
    text += f"\n\nNot asked, for want of input: {', '.join(cause.not_asked)}." if cause.not_asked else ""
    return Section(title=f"Evidence for {cause.cause} ({say.certainty(cause)}){suffix}", text=text, table=rows)


def _in_float16(recording: Recording, incident: Incident) -> bool:
    """Whether something may be computed in float16, whose range is what a peak is compared with."""
    precision = recording.facts.precision
    said = {precision.compute, precision.parameters} if precision else {"float16"}
    return "float16" in said | {incident.origin.dtype if incident.origin else None}


def _outputs(origins: Sequence[Mapping[str, Any]], incident: Incident, *, half: bool) -> Picture | None:
    """The peak of every module's output in the captured step."""
    layers = _drawable(_list(origins[-1].get("layers")) if origins else [], "peak")  # later ones add to it
    if not layers:
        return None
    line = " The dashed line is the largest float16." if half else ""
    caption = f"{say.counted(len(layers), 'module')} in forward order, from the top.{line}"
    caption += f" {sum(count > 0 for _, _, count in layers)} of them gave non-finite values (crosses)."
    module = incident.origin.module if incident.origin else None
    if incident.origin and incident.origin.phase == "backward":
        caption += " These are values of the forward; the first bad value arose in the backward pass"
        caption += f" of {module} (diamond)." if any(name == module for name, _, _ in layers) else "."
    svg = charts.profile(layers, origin=module, limit=charts.MAX_FLOAT16 if half else None)
    return Picture(svg=svg, caption=caption)


def _gradients(event: Mapping[str, Any], incident: Incident) -> Picture | None:
    """The gradients that the backward gave, where that is what went wrong."""
    origin = incident.origin
    if incident.symptom != "nonfinite-gradient" and (origin is None or origin.phase != "backward"):
        return None
    modules = _drawable(_list(event.get("gradients")), "norm")
    if not modules:
        return None
    caption = (
        f"Gradients of {say.counted(len(modules), 'module')} in forward order: the backward runs from the bottom. "
    )
    caption += f"{sum(count > 0 for _, _, count in modules)} of them are not finite (crosses)."
    if origin is not None and origin.module is not None:
        caption += f" The first bad value was made in {origin.module or 'the model itself'}."
    label = "norm of the gradient, without the loss scale"
    svg = charts.profile(modules, origin=origin.module if origin else None, limit=None, label=label)
    return Picture(svg=svg, caption=caption)


def _drawable(layers: Sequence[Any], what: str) -> list[tuple[str, float, int]]:
    found = [_layer(layer, what) for layer in layers]
    return [layer for layer in found if layer is not None]


def _layer(layer: Any, what: str) -> tuple[str, float, int] | None:
    known = _mapping(layer)
    peak, count = number(known.get(what)), number(known.get("nonfinite"))
    if peak is None:
        return None
    return str(known.get("module")), peak, int(count) if count is not None and math.isfinite(count) else 0


def _list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def _timeline(recording: Recording) -> Section | None:
    """What happened, in order; the events of all ranks."""
    events = sorted(recording.events(), key=lambda event: (event["step"], event["rank"]))
    rows: list[Row] = [("Step", "Rank", "Event", "What")]
    for event in events[:ROWS_SHOWN]:
        rows.append((f"{event['step']:,}", str(event["rank"]), str(event["event"]), _told(event)))
    return Section(title="Timeline", table=rows, text=_cut(len(events), ROWS_SHOWN, "event")) if events else None


def _told(event: Mapping[str, Any]) -> str:
    """One event in words."""
    text = str(event.get("text", ""))
    match event["event"]:
        case "origin":
            known = _mapping(event.get("origin"))
            module = known.get("module")
            where = module or known.get("tensor") or say.ran_in(module if isinstance(module, str) else None)
            return f"{where}, {known.get('op')} ({known.get('phase')})"
        case "arm":
            placebo = " (placebo)" if event.get("placebo") is True else ""
            return f"{event.get('arm')}{placebo}: {event.get('result')}"
        case "action":
            return text or str(event.get("action", ""))
        case "log":
            return f"the log printed {event.get('printed')}; the value was {event.get('true')}"
        case "stop":
            checkpoint = event.get("checkpoint")
            return f"{text}; last good checkpoint {checkpoint}" if checkpoint else text
        case "broken":
            return f"a fault of finitune itself: {text}"
        case _:
            return text


def _facts(recording: Recording) -> Section | None:
    """Versions, hardware, precision, optimizer, model: every scalar of the header."""
    rows: list[Row] = [("Group", "Name", "Value")]
    known = _mapping(recording.header.get("facts"))
    run = {key: value for key, value in recording.header.items() if key not in ("facts", "format")}
    for group in ("versions", "hardware", "precision", "optimizer", "model"):
        rows += _scalars(group, known.get(group))
    if command := _list(run.get("command")):
        run["command"] = shlex.join(masked([str(word) for word in command]))
    if (started := number(run.get("started"))) is not None and 0 <= started < LAST_DATE:
        run["started"] = datetime.fromtimestamp(started, tz=timezone.utc).isoformat(" ", "seconds")
    rows += _scalars("run", run)
    return Section(title="Facts", table=rows) if len(rows) > 1 else None


def _scalars(group: str, values: Any) -> list[Row]:
    pairs = _mapping(values).items()
    return [(group, key, say.setting(value)) for key, value in pairs if value is not None and value != {}]


def _not_checked(recording: Recording, diagnosis: Diagnosis) -> Section | None:
    rows: list[Row] = [("Input", "Why")]
    rows += [(missing.input, missing.why) for missing in diagnosis.not_checked]
    rows += [("recording", problem) for problem in recording.problems]
    return Section(title="Not checked", table=rows) if len(rows) > 1 else None


def _cut(count: int, shown: int, noun: str) -> str:
    return f"{say.counted(count, noun)} in all; the first {shown} are listed." if count > shown else ""
