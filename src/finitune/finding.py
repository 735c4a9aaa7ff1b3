"""Findings, incidents and diagnoses: what every verb returns, and how it becomes strict JSON.

The field names are those of the JSON contract, so `as_json` is the whole serialiser.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
Safety = Literal["safe", "unsafe", "advice"]
Phase = Literal["input", "parameter", "forward", "backward", "optimizer"]
Strength = Literal["proved", "likely", "guess"]
Certainty = Literal["incident", "suspicion"]
Action = Literal["none", "skipped-step", "skipped-batch", "rolled-back", "healed", "stopped"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The place of a finding; every field that does not apply stays None."""

    file: str | None = None
    line: int | None = None
    """From 1; of a notebook in its cell."""
    cell: int | None = None
    """Of a notebook, from 1."""
    key: str | None = None
    module: str | None = None
    tensor: str | None = None
    tokens: Sequence[int] | None = None
    rows: Sequence[int] | None = None
    step: int | None = None
    rank: int | None = None

    @staticmethod
    def said(source: str | None) -> Where:
        """The place that the `source` of facts names, as "file" or "file: key"."""
        file, _, key = (source or "").rpartition(": ")
        return Where(file=file or source, key=key if file else None)


class Printed:
    """What `print` and a notebook show of a result: what the command line prints."""

    __slots__ = ()

    def __str__(self) -> str:
        # the one step upward, taken by name when somebody prints: results know how they look
        return str(importlib.import_module("finitune.reports.terminal").text_of(self))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """In a patch: the key itself changes, and its value stays."""

    renamed_to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A remedy made concrete for one finding: the command to type or the settings to change.

    `name` and `safety` are those of its chapter in `remedies/`, and filled in when a chapter is asked. `patch` maps
    config keys to their new values, or to a `Renamed`; `text` says what to do where neither of them can.
    """

    name: str = ""
    safety: Safety = "advice"
    command: str | None = None
    patch: Mapping[str, Any] | None = None
    text: str | None = field(default=None, metadata={"json": False})
    spelled: Mapping[str, Any] | None = field(default=None, metadata={"json": False})
    """The patch in the words of the file that takes it, where one file takes all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One statement with its place, its numbers and its remedy.

    `cause` is the chapter that makes it, and filled in when a chapter is asked.
    """

    cause: str = ""
    severity: Severity
    message: str
    where: Where = field(default_factory=Where)
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])
    remedy: Remedy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotChecked:
    """An input that was not there, so that nobody reads silence as health."""

    input: str
    why: str
    given: bool = field(default=False, metadata={"json": False})
    """It was given, or named by what was given, and could not be used: the verdict says so in the JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult(Printed):
    """What `finitune check` answers.

    `passed` are the causes that were asked with all that they can read and found nothing; `nothing_to_say` those about
    something that this run does not have, such as quantisation, as far as its files say. `not_asked` are the others:
    for each input that was not there, the causes that could use it. `understood` says in a line what each file is.
    """

    findings: Sequence[Finding]
    not_checked: Sequence[NotChecked]
    passed: Sequence[str] = ()
    nothing_to_say: Sequence[str] = ()
    understood: Sequence[str] = ()
    not_asked: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    lengths: Sequence[Mapping[str, Any]] = ()
    """Tokens of rows, prompts and targets: `what`, least, median, p95, most."""
    schema: str = "finitune.check/1"

    @property
    def verdict(self) -> Literal["ok", "incomplete", "at-risk", "broken"]:
        severities = {finding.severity for finding in self.findings}
        if "error" in severities:
            return "broken"
        if "warning" in severities:
            return "at-risk"
        unused = any(entry.given for entry in self.not_checked)
        nothing = not self.findings and not self.passed  # no cause was asked to its end
        return "incomplete" if unused or nothing else "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One reason for (positive bits) or against (negative bits) a cause.

    `bits` is log2 of the likelihood ratio: +1 doubles the odds of the cause, -1 halves them. `about` is a noun for what
    was measured ("loss curve"); of several reasons about one thing only the strongest counts, and "" is about nothing.
    """

    text: str
    bits: float
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The first operator whose inputs are finite and whose output is not.

    `op` is the ATen name without overload (`aten.mm`), `rows` and `positions` index the batch,
    `values` says what was seen there, `peak` is the largest finite magnitude that went in, `line` is the user's own
    source line, as `train.py:41 in compute_loss: loss = a / b`.
    """

    module: str | None
    op: str
    phase: Phase
    dtype: str
    rows: Sequence[int] | None = None
    positions: Sequence[int] | None = None
    tokens: Sequence[int] | None = None
    values: str | None = None
    peak: float | None = None
    tensor: str | None = None
    padding: bool | None = None
    line: str | None = None
    divisor: str | None = None
    """Of a division, or a mean: how much of what it divided by is zero, in words."""
    divisor_by_batch: bool | None = None
    """Whether a number that is trained is divided by one that the batch alone makes, as a count."""
    shape: Sequence[int] | None = None
    """Of the tensor that is not finite."""

    @property
    def is_operator(self) -> bool:
        """An operator is known, and not only where the value was seen."""
        return self.op != self.phase

    @property
    def is_statement(self) -> bool:
        """Only the statement of the loop is known in which the first bad value was made, not the operator."""
        return not self.is_operator and self.phase in ("forward", "backward")

    @property
    def is_of_encoder(self) -> bool:
        """Features that a module has made which is not trained, as an encoder of images: a loss has fewer axes."""
        features = self.tensor is not None and len(self.shape or ()) > 2  # samples and positions
        unknown = self.phase == "forward" and self.module is None
        return features and unknown and " in forward: " in (self.line or "")

    @property
    def is_empty_mean(self) -> bool:
        """0/0 that the loop computes outside of modules, where the batch alone makes the 0 below: nothing counts."""
        of_loop = self.phase == "forward" and self.module is None
        return of_loop and self.divisor_by_batch is True and "nan" in (self.values or "")

    @property
    def is_loss_of_nothing(self) -> bool:
        """A kernel of a loss, each of which is finite for zeros, has made a NaN, and saw no other number."""
        is_loss = re.match(r"aten\.\w*(_loss|cross_entropy)", self.op) is not None
        return is_loss and self.shape == [] and self.values == "1 nan" and self.peak == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedCause:
    """A cause with every term of its weight.

    `bits` is log2 of prior times evidence. `confidence` is None unless it was calibrated on data.
    """

    cause: str
    confidence: float | None
    proved: bool
    bits: float
    evidence: Sequence[Evidence]
    remedies: Sequence[Remedy]
    not_asked: Sequence[str] = ()
    """Inputs of the chapter that were not there, or why it could not be asked."""
    proof: Sequence[str] = ()
    """Where it is proved: the arm that made the step finite, and the placebo that did not."""
    strength: Strength = "guess"
    """`likely`: ahead of the runner-up by one strong piece of evidence, which is not words alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One bad step, or one run of bad steps with the same symptom, and why it happened."""

    step: int | None
    """None where a case was described and no step is known."""
    rank: int
    symptom: str
    reproducible: bool | None
    origin: Origin | None
    causes: Sequence[RankedCause]
    action: Action
    bit_for_bit: bool | None = None
    """Whether the step came out the same to the last bit when it was run again."""
    source: Literal["recording", "log", "case"] = "recording"
    """What tells of it; only a recorded run was looked at while it trained."""
    not_located: str | None = None
    """Why there is no origin."""
    last_good: int | None = None
    """The step whose weights the run has."""
    last_step: int | None = None
    message: str = ""
    seen: Sequence[str] = ()
    """What a log shows, each with its line; empty for a recording."""
    unlisted: float | None = None
    """The share of the posterior that no chapter of the book has; None unless it was calibrated."""
    next_check: str = ""
    """What is expected to decide most, where nothing has been proved."""
    does_not_help: Sequence[str] = ()
    """Advice that was tried and cannot help, with the reason."""
    level: Certainty = "incident"
    """A suspicion was said once and changed nothing; an incident is certain."""
    confirm: str = ""
    """What would confirm a suspicion."""
    unit: Literal["step", "row"] = field(default="step", metadata={"json": False})
    """What `step` counts: a log that says no steps has rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Printed):
    """What `finitune diagnose` answers."""

    incidents: Sequence[Incident]
    not_checked: Sequence[NotChecked] = ()
    steps: int | None = None
    """How many optimizer steps were recorded; None where no recording tells."""
    schema: str = "finitune.diagnosis/1"

    @property
    def verdict(self) -> Literal["healthy", "suspect", "incident"]:
        if any(incident.level == "incident" for incident in self.incidents):
            return "incident"
        return "suspect" if self.incidents else "healthy"


def renamed(value: Any, old: str, new: str) -> Any:
    """The same with `old` replaced by `new` in every text, that of inner dataclasses, mappings and lists included."""
    if isinstance(value, str):
        return value.replace(old, new)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: renamed(getattr(value, f.name), old, new) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **fields)
    if isinstance(value, Mapping):
        return {k: renamed(v, old, new) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [renamed(v, old, new) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def as_json(value: Any) -> Any:
    """Plain dicts, lists, strings and finite numbers; non-finite floats become "nan", "inf", "-inf".

    Takes dataclasses, mappings, sequences, numpy scalars and arrays. `json.dumps(..., allow_nan=False)`
    never fails on the result.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else number_name(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = [f.name for f in dataclasses.fields(value) if f.metadata.get("json", True)]
        out = {name: as_json(getattr(value, name)) for name in shown}
        verdict = getattr(value, "verdict", None)
        return {"schema": out.pop("schema"), "verdict": verdict, **out} if verdict and "schema" in out else out
    if isinstance(value, Mapping):
        return {str(k): as_json(v) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    tolist: Any = getattr(value, "tolist", None)
    if tolist is not None:  # numpy scalars and arrays; a long double has no plain form but float
        plain: Any = tolist()
        return as_json(float(plain) if type(plain) is type(value) else plain)
    if isinstance(value, Sequence | set | frozenset):
        return [as_json(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return str(value)


def number_name(value: float) -> str:
    """The strict-JSON spelling of a non-finite number."""
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def short_exponent(text: str) -> str:
    """A number as people write it: 2e-6 for 2e-06."""
    return re.sub(r"(?<=\d)e([+-])0+(?=\d)", r"e\1", text)


def number(value: Any) -> float | None:
    """The float behind a JSON value written by `as_json`; None for anything that is not a number."""
    if isinstance(value, str):
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond 2**1024
        return math.inf if value > 0 else -math.inf


class UnreadableInput(ValueError):
    """Input that cannot be used: one line that names the file, the place and what was expected (exit code 2)."""


InputError = UnreadableInput
"""The name that users have for it."""
