"""The properties of the conformance table: what is wrong with a run, judged from what it left behind.

found       the fault of step 3 is an incident of step 3, no other step is, with its first bad operator where the
            gradient or the loss of the model is at fault
unchanged   weights and optimizer state after step 3 are those after step 2, bit for bit
goes on     step 4 is finite and moves the weights
escapes     non-finite numbers in weights, optimizer state or checkpoint at the end, and a finite figure in the log for
            a loss that was not, uncorrected
identical   the healthy run: weights, optimizer state, random numbers and log as without the guard, and no incident
resume      a run resumed from its own checkpoint goes on with the recording: steps 1 to 8
our fault   with every measurement of the guard raising, the run is the unguarded one, and this is said
one line    a NaN loss through `finitune.watch` or the framework's callback: found, unchanged, no escape
tracker     the framework's own tracker holds the true loss and the alert; -- where none is asked to
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stacks._faults import BAD, NAN_LOSS, ORIGIN, SPIKE, STEPS

from finitune.recording import Recording

PROPERTIES = (
    "found", "unchanged", "goes on", "escapes", "identical", "resume", "our fault", "one line", "tracker",
)  # fmt: skip
INTO = ("weights", "optimizer state", "checkpoint", "log")
"""What an escape gets into."""


@dataclass(slots=True, kw_only=True)
class Run:
    """What one process left behind, or one on each rank."""

    code: int
    said: str
    results: list[dict[str, Any]]
    recording: Recording | None

    @property
    def rows(self) -> list[list[dict[str, Any]]]:
        """The diary of each rank."""
        return [result["rows"] for result in self.results]

    def events(self, *names: str) -> list[Mapping[str, Any]]:
        return self.recording.events(*names) if self.recording else []

    def series(self, name: str) -> list[tuple[int, float]]:
        if self.recording is None:
            return []
        series = self.recording.signals[name]
        return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def of_faulty(fault: str, run: Run, *, located: bool) -> dict[str, list[str]]:
    """What is wrong with a run that had a fault; `located`: its first bad operator can be told."""
    return {
        "found": found(fault, run, located=located),
        "unchanged": unchanged(run),
        "goes on": goes_on(fault, run),
        "escapes": [f"{into}: {what}" for into, what in escapes(fault, run)],
    }


def ended(run: Run) -> str:
    """How a run ended that should not have."""
    lines = [line for line in run.said.splitlines() if line.strip()]
    return f"exit code {run.code}: {lines[-1][:200] if lines else 'nothing said'}"


def found(fault: str, run: Run, *, located: bool) -> list[str]:
    if run.code or run.recording is None:
        return [ended(run)]
    steps = sorted({event["step"] for event in run.events("incident")})
    problems = [] if steps == [BAD] else [f"incidents at steps {steps}"]
    problems += [f"finitune failed: {event.get('text')}" for event in run.events("broken")]
    if located and fault in ORIGIN:
        modules = [str(event["origin"]["module"] or "") for event in run.events("origin") if event.get("origin")]
        whys = [event.get("why_not") for event in run.events("origin")]
        if not modules:
            problems.append(f"no origin ({whys})")
        problems += [f"origin in {name}" for name in modules if not name.endswith(ORIGIN[fault])]
    return problems


def unchanged(run: Run) -> list[str]:
    problems = []
    for rank, rows in enumerate(run.rows):
        for what in ("weights", "state"):
            if len(rows) < BAD or rows[BAD - 1][what] != rows[BAD - 2][what]:
                problems.append(f"rank {rank}: {what} changed")
    return problems or ([] if run.rows else ["no result"])


def goes_on(fault: str, run: Run) -> list[str]:
    """A GradScaler may skip the spike by itself: times 100 and 65536 it overflows float16."""
    problems = []
    for rank, rows in enumerate(run.rows):
        if len(rows) <= BAD or rows[BAD]["weights"] == rows[BAD - 1]["weights"]:
            problems.append(f"rank {rank}: step {BAD + 1} did not train")
        elif not rows[BAD]["finite_weights"]:
            problems.append(f"rank {rank}: step {BAD + 1} is not finite")
    own = {SPIKE} if fault == "aux-nan+spike" and run.series("loss_scale") else set()
    skipped = [step for step, flag in run.series("skipped") if flag and step not in {BAD} | own]
    return problems + ([f"steps {skipped} were discarded too"] if skipped else [])


def escapes(fault: str, run: Run) -> list[tuple[str, str]]:
    """Into which of INTO, and what."""
    out = []
    for rank, result in enumerate(run.results):
        last = result["rows"][-1]
        out += [("weights", f"rank {rank}")] * (not last["finite_weights"])
        out += [("optimizer state", f"rank {rank}")] * (not last["finite_state"])
        out += [("checkpoint", name) for name in result["poisoned_files"]]
        out += [("checkpoint", "none was read")] * (not result["saved_tensors"])
    shown = run.results[-1]["shown"] if run.results else {}  # the fault is on the last rank
    step = min((int(step) for step in shown if int(step) >= BAD), default=BAD)  # a log may stand for several steps
    loss = shown.get(str(step), {}).get("loss", math.nan)
    if fault in NAN_LOSS and math.isfinite(loss) and f"step {step}: the trainer shows loss" not in run.said:
        out.append(("log", f"loss {loss:g} is shown and nobody says otherwise"))
    return out


def differences(plain: Run, other: Run) -> list[str]:
    if other.code:
        return [ended(other)]
    out = []
    for rank, (one, two) in enumerate(zip(plain.results, other.results, strict=False)):
        for before, after in zip(one["rows"], two["rows"], strict=False):
            out += [f"rank {rank}, step {before['step']}: {k} differs" for k in before if before[k] != after[k]]
        if one["shown"] != two["shown"]:
            out.append(f"rank {rank}: the log differs")
    return out[:3] if len(plain.results) == len(other.results) else ["a rank is missing"]


def not_quiet(run: Run) -> list[str]:
    events = run.events("incident", "broken")
    return [f"{event['event']} at step {event['step']}" for event in events] + _unrecorded(run)


def _unrecorded(run: Run) -> list[str]:
    steps = [step for step, _ in run.series("loss")]
    return [] if steps == list(range(1, STEPS + 1)) else [f"recorded steps {steps}"]


def our_fault(plain: Run, run: Run) -> list[str]:
    said = all(part in run.said for part in ("finitune itself failed", "(RuntimeError: broken on purpose)"))
    return differences(plain, run) + ([] if said else ["nothing was said"])


def resume(run: Run) -> list[str]:
    """The result is that of the second half."""
    if run.code:
        return [ended(run)]
    trained = sorted({row["step"] for rows in run.rows for row in rows})
    second = list(range(STEPS // 2 + 1, STEPS + 1))
    return ([] if trained == second else [f"trained steps {trained}"]) + _unrecorded(run)


def tracker(run: Run) -> list[str]:
    trackers = run.results[0].get("tracker") if run.results else None
    out = [] if trackers else ["no tracker is installed"]
    for name, seen in (trackers or {}).items():
        if not math.isnan(float(seen["loss"].get(str(BAD), 0.0))):
            out.append(f"{name}: the true loss of step {BAD} is not there")
        if not seen["alerts"]:
            out.append(f"{name}: no alert")
    return out
