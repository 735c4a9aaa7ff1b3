"""Sentences that every report shares: the terminal and the page say the same facts in the same words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from finitune.finding import (
    Action,
    Incident,
    Origin,
    RankedCause,
    Remedy,
    Renamed,
    Where,
    as_json,
    number_name,
    short_exponent,
)

_RANGES_SHOWN = 8
_SHOWN_BITS = 0.05

_ACTIONS: Mapping[Action, str] = {
    "none": "Nothing was changed.",
    "skipped-step": "Update discarded; weights are those of {good}.",
    "skipped-batch": "Update discarded, and taken again without the samples at fault.",
    "rolled-back": "Run set back to an earlier step, and continued from there.",
    "healed": "Update discarded, and the run was healed.",
    "stopped": "Run stopped; weights are those of {good}.",
}

_REPEATS: Mapping[bool | None, str] = {
    True: "yes",
    False: "no: the same step is finite when run again",
    None: "not tried",
}


def printable(text: object) -> str:
    """`text` on one line, control characters spelled out: names and logs come from anywhere and must not steer us."""
    return "".join(
        c if c.isprintable() else " " if c.isspace() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in str(text)
    )


def ranges(numbers: Sequence[int]) -> str:
    """`[0, 1, 2, 7]` -> "0-2, 7"; long lists are cut, and say how many there are in all."""
    runs: list[tuple[int, int]] = []
    distinct = sorted(set(numbers))
    for n in distinct:
        if runs and n == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], n)
        else:
            runs.append((n, n))
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:_RANGES_SHOWN])
    return shown if len(runs) <= _RANGES_SHOWN else f"{shown}, ... ({len(distinct)} in all)"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def columns(table: Sequence[Sequence[str | int]]) -> list[str]:
    """One line for each row, every column as wide as what stands in it; columns of numbers end together."""
    texts = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in table]
    widths = [max(map(len, cells)) for cells in zip(*texts, strict=True)]
    right = [any(isinstance(cell, int) for cell in cells) for cells in zip(*table, strict=True)]
    spaced = [
        [text.rjust(width) if ends else text.ljust(width) for text, width, ends in zip(row, widths, right, strict=True)]
        for row in texts
    ]
    return ["  ".join(row).rstrip() for row in spaced]


def several(noun: str, numbers: Sequence[int]) -> str:
    """`rows 2, 5`, or `row 2` when there is one."""
    return f"{noun}{'s' if len(set(numbers)) > 1 else ''} {ranges(numbers)}"


def figure(value: float) -> str:
    """A number as people read it: 65504, 0.0003, 1.2e+05, nan."""
    if not math.isfinite(value):
        return number_name(value)
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"


def place(where: Where) -> str:
    """Where a finding is, most general part first; empty when it names no place."""
    parts = [part for part in (_spot(where), where.key, where.module, where.tensor) if part]
    parts += [several("token", where.tokens)] if where.tokens else []
    parts += [several("row", where.rows)] if where.rows else []
    parts += [f"step {where.step}"] if where.step is not None else []
    parts += [f"rank {where.rank}"] if where.rank is not None else []
    return ", ".join(parts)


def _spot(where: Where) -> str | None:
    """`train.py:12`, or `train.ipynb, cell 3, line 2`."""
    if where.line is None:
        return where.file
    return f"{where.file}:{where.line}" if where.cell is None else f"{where.file}, cell {where.cell}, line {where.line}"


def ran_in(module: str | None) -> str:
    """Where an operator ran: a module, the forward of the whole model, or the loop's own code after it."""
    return "the loss" if module is None else module or "the model"


def first_bad_value(origin: Origin | None, why_not: str | None = None) -> str:
    """`model.layers.7.mlp, aten.mul (forward), float16: inf in rows 2, 5 at padding positions 0-3`."""
    if origin is None:
        return f"not located: {why_not or 'the step was finite when run again'}"
    if origin.phase in ("parameter", "input"):
        made = f"{origin.op}, " if origin.op.startswith("aten.") else ""  # of finite numbers, by a data set
        head = f"{origin.tensor} ({made}{origin.phase}), {origin.dtype}"
    elif origin.is_statement:
        head = f"{origin.tensor or 'gradients'} ({origin.phase}), {origin.dtype}"
    else:
        of_loop = origin.module is None and origin.phase in ("forward", "backward")
        where = origin.tensor if origin.phase == "optimizer" or of_loop else origin.module
        head = ", ".join([ran_in(where), f"{origin.op} ({origin.phase})", origin.dtype])
    seen = [origin.values or "not finite"]
    seen += [f"in {several('row', origin.rows)}"] if origin.rows else []
    if origin.positions:
        kind = {True: "padding ", False: "real-token ", None: ""}[origin.padding]
        seen.append(f"at {several(kind + 'position', origin.positions)}")
    seen += [f"({several('token', origin.tokens)})"] if origin.tokens else []
    text = f"{head}: {' '.join(seen)}"
    if origin.peak is not None and origin.phase in ("forward", "backward"):
        text += f"; largest value going in {figure(origin.peak)}"
    text += f"; {origin.divisor}" if origin.divisor else ""
    return f"{text}; {origin.line}" if origin.line else text


def repeats(incident: Incident) -> str:
    return _REPEATS[incident.reproducible] + (", bit for bit" if incident.reproducible and incident.bit_for_bit else "")


def steps(incident: Incident) -> str:
    """`step 31`, `steps 31-33`, `step 31, rank 2`; `the case` where no step is known."""
    last = incident.last_step
    if incident.step is None:
        return "the case"
    if not incident.step and incident.source == "log":
        return "log"  # an error that stands in no step
    unit = incident.unit
    text = f"{unit}s {incident.step}-{last}" if last is not None and last > incident.step else f"{unit} {incident.step}"
    return f"{text}, rank {incident.rank}" if incident.rank else text


def what_happened(incident: Incident) -> str:
    """What was seen, and what became of the step."""
    seen = (incident.message or incident.symptom).rstrip(".")
    if incident.step is None:
        return f"{seen}."
    if incident.level == "suspicion":
        return f"suspicion: {seen}."
    if incident.source == "log" or incident.symptom in ("crash", "unexplained-exit"):
        return seen  # nobody acted
    good = "the last good step" if incident.last_good is None else f"step {incident.last_good}"
    return f"{seen}. {_ACTIONS.get(incident.action, '').format(good=good)}".rstrip()


def reasons(cause: RankedCause) -> str:
    """The proof, or else the piece of evidence that speaks most for the cause."""
    if cause.proof:
        cured, placebo = (arm_in_words(arm) for arm in cause.proof)
        return f"finite with {cured}, not with {placebo}"
    texts = [evidence.text for evidence in sorted(cause.evidence, key=lambda e: -e.bits) if evidence.bits > 0]
    return texts[0] if texts else ""


_ARMS = {
    "module-float32": "{} in float32",
    "replace-embedding-rows": "embedding rows {} replaced",
    "repair-weight": "odd values of {} set to zero",
    "last-steps": "the last steps taken again at {} times their learning rate",
    "update-times": "the update at {} times its learning rate",
    "float32": "everything in float32",
    "row-by-row": "each row by itself",
    "pad-other-side": "the padding on the other side",
    "reverse-rows": "the rows in reverse order",
    "zero-empty-rows": "zeros for rows of attention that see no key",
    "zero-other-rows": "zeros for the rows next to them",
}


def arm_in_words(arm: str) -> str:
    """`module-float32=model.layers.7.mlp` -> `model.layers.7.mlp in float32`."""
    name, _, argument = arm.partition("=")
    if name == "leave-rows-out" and all(row.isdecimal() for row in argument.split(",")):
        return f"{several('sample', [int(row) for row in argument.split(',')])} left out"
    return _ARMS[name].format(argument.replace(",", ", ")) if name in _ARMS else arm


def certainty(cause: RankedCause) -> str:
    """`proved`, `likely` or `a guess`, with the confidence where one was calibrated."""
    words = {"proved": "proved", "likely": "likely", "guess": "a guess"}[cause.strength]
    return words if cause.proved or cause.confidence is None else f"{words} ({cause.confidence:.0%} sure)"


def or_else(cause: RankedCause) -> str:
    """A cause that is not the first, with its share where that was calibrated, else with its best reason."""
    if cause.confidence is not None:
        return f"{cause.cause} ({cause.confidence:.0%})"
    reason = reasons(cause)
    return f"{cause.cause}: {reason}" if reason else cause.cause


def why(incident: Incident) -> str:
    """The first cause in one sentence with its best reason."""
    if not incident.causes and incident.symptom in ("crash", "unexplained-exit"):
        return "what it died of is said above; no chapter of the cause book is about it"
    if not incident.causes:
        return "unknown: no chapter of the cause book explains this step"
    cause = incident.causes[0]
    reason = reasons(cause)
    return f"{cause.cause}, {certainty(cause)}" + (f": {reason}" if reason else "")


def terms(cause: RankedCause) -> list[tuple[str, str]]:
    """Bits and text of everything that `cause.bits` is the sum of."""
    rest = cause.bits - sum(evidence.bits for evidence in cause.evidence)
    before = [("how often it occurs in public incidents", rest)] if abs(rest) >= _SHOWN_BITS else []
    return [(bits(value), text) for text, value in [*before, *((e.text, e.bits) for e in cause.evidence)]]


def bits(value: float) -> str:
    return f"{value:+.1f}" if math.isfinite(value) else number_name(value)


def do(remedy: Remedy) -> str:
    """What to type or to set."""
    if remedy.patch:
        note = f" ({remedy.text})" if remedy.text else ""
        renamed = [f"rename {key} to {new.renamed_to}" for key, new in remedy.patch.items() if isinstance(new, Renamed)]
        said = remedy.patch if renamed else remedy.spelled or remedy.patch
        pairs = [(key, value) for key, value in said.items() if not isinstance(value, Renamed)]
        values = ["set " + ", ".join(f"{key} = {setting(value)}" for key, value in pairs)] if pairs else []
        return ", ".join([*renamed, *values]) + note
    return remedy.command or remedy.text or remedy.name


def remedy_note(remedy: Remedy) -> str:
    """The remedy's name, where `do` does not already say it, and how safe it is."""
    return remedy.safety if do(remedy) == remedy.name else f"{remedy.name}, {remedy.safety}"


def setting(value: Any) -> str:
    """A value as a config file spells it."""
    plain = as_json(value)
    if isinstance(plain, bool) or plain is None:
        return {True: "true", False: "false", None: "null"}[plain]
    if isinstance(plain, float):
        return short_exponent(f"{plain:.6g}")
    if isinstance(plain, list):
        return "[" + ", ".join(setting(item) for item in plain) + "]"  # pyright: ignore[reportUnknownVariableType]
    return str(plain)  # pyright: ignore[reportUnknownArgumentType]
