"""Integration x property: every stack that finitune watches, put through the same eight faults.

    python benchmarks/conformance.py [--json FILE] [--jobs 2] [--keep DIR] [STACK[:VARIANT] ...]

A stack is a file in `benchmarks/stacks/`, found by its name: a training program as its users write it, without a word
of finitune. It declares `VARIANTS`, `LINE` (variants tried through the one-line door too), `NEEDS` (modules; without
them the row says so) or `PYTHON` (an environment of its own), and `REASONS` (property, fault or "origin" -> why it
cannot hold there). Every run is a process of its own, guarded by `finitune run -- python ...`; the runs of a row are
forked from a process that has done no more than import the stack. Exit code 1 when a cell is "no" without a declared
reason.

found       the fault of step 3 is an incident of step 3, no other step is, with its first bad operator where the
            gradient or the loss of the model is at fault; in brackets: runs with an origin / runs
unchanged   weights and optimizer state after step 3 are those after step 2, bit for bit
goes on     step 4 is finite and moves the weights
escapes     non-finite numbers in weights, optimizer state or checkpoint at the end, and a finite figure in the log for
            a loss that was not, uncorrected
identical   the healthy run: weights, optimizer state, random numbers and log as without the guard, and no incident
resume      a run resumed from its own checkpoint goes on with the recording: steps 1 to 8
our fault   with every measurement of the guard raising, the run is the unguarded one, and this is said
tracker     the framework's own tracker holds the true loss and the alert
one line    the same fault through `finitune.watch` or the framework's callback
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from finitune.demo.tell import LAPTOP
from finitune.recording import Recording

ROOT = Path(__file__).parents[1]
STACKS = ROOT / "benchmarks" / "stacks"
SOURCES = ROOT / "src"
STEPS, BAD, SPIKE = 8, 3, 5
FAULTS = (
    "grad-nan", "grad+inf", "grad-inf", "grad-nan-late", "loss-nan", "labels-ignored", "aux-nan", "aux-nan+spike",
)  # fmt: skip
LOCATED = ("grad-nan", "grad+inf", "grad-inf", "loss-nan", "labels-ignored")
"""The faults whose operator belongs to the model or to a loss that can be run again."""
NAN_LOSS = ("loss-nan", "labels-ignored", "aux-nan", "aux-nan+spike")
PROPERTIES = (
    "found", "unchanged", "goes on", "escapes", "identical", "resume", "our fault", "tracker", "one line",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One row of the table."""

    name: str
    variant: str
    processes: int
    reasons: Mapping[str, str]
    tracker: bool
    line: bool
    python: str
    missing: str

    @property
    def row(self) -> str:
        return f"{self.name}:{self.variant}"


@dataclass(slots=True, kw_only=True)
class Run:
    """What one process left behind."""

    directory: Path
    code: int
    said: str
    results: list[dict[str, Any]]
    recording: Recording | None

    @property
    def rows(self) -> list[list[dict[str, Any]]]:
        return [result["rows"] for result in self.results]

    def incidents(self) -> list[Mapping[str, Any]]:
        return self.recording.events("incident") if self.recording else []

    def origins(self) -> list[Mapping[str, Any]]:
        return [e for e in (self.recording.events("origin") if self.recording else []) if e.get("origin")]


@dataclass(slots=True, kw_only=True)
class Cell:
    """`verdict` is yes, no, or -- where the property does not apply; `why` says what was seen or declared."""

    verdict: str
    why: list[str] = field(default_factory=list)


def stacks(chosen: list[str]) -> Iterator[Stack]:
    """Every stack there is, or the chosen ones, without importing any."""
    for path in sorted(STACKS.glob("[a-z]*.py")):
        said = _constants(path)
        for variant in said["VARIANTS"]:
            if chosen and not {path.stem, f"{path.stem}:{variant}"} & set(chosen):
                continue
            python, missing = _python(said)
            yield Stack(
                name=path.stem,
                variant=variant,
                processes=said.get("PROCESSES", 1),
                reasons=said.get("REASONS", {}),
                tracker=variant in said.get("TRACKER", ()),
                line=variant in said.get("LINE", ()),
                python=python,
                missing=missing,
            )


def _python(said: Mapping[str, Any]) -> tuple[str, str]:
    """The interpreter of a stack, and what it lacks."""
    if "PYTHON" in said:
        place, variable, made_by = said["PYTHON"]
        python = os.environ.get(variable) or str(ROOT / place)
        return python, "" if Path(python).exists() else f"{place} is not there: {made_by}"
    absent = [name for name in said.get("NEEDS", ()) if importlib.util.find_spec(name) is None]
    return sys.executable, "not installed: " + ", ".join(absent) if absent else ""


def _constants(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper() and node.value is not None:
                try:
                    found[target.id] = ast.literal_eval(node.value)
                except ValueError:
                    continue
    return found


def planned(fault: str, directory: Path, **other: Any) -> dict[str, Any]:
    """One run as `stacks/_scenario.py` reads it."""
    usual = {"door": "command", "until": STEPS, "resume": False, "broken": False}
    return {"fault": fault, "directory": str(directory), **usual, **other}


def start(stack: Stack, place: Path, name: str, plan: list[dict[str, Any]], *, guarded: bool) -> None:
    """Make the runs of `plan`, each in a process of its own, forked from one that has imported the stack."""
    place.mkdir(parents=True, exist_ok=True)
    file = place / f"{name}.json"
    file.write_text(json.dumps(plan))
    python = [stack.python]
    program = [str(STACKS / f"{stack.name}.py"), stack.variant, str(file)]
    command = [*python, *program]
    if stack.processes > 1:
        command = [*python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={stack.processes}"]
        command += program
    if guarded:
        command = [sys.executable, "-m", "finitune", "run", "--run-dir", str(place / "none"), "--", *command]
    paths = [*([LAPTOP] if stack.python != sys.executable else []), SOURCES, os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore", "PYTHONPATH": os.pathsep.join(map(str, filter(None, paths))),
    }  # fmt: skip
    with (place / f"{name}.txt").open("w") as said:
        subprocess.run(command, env=environment, cwd=place, stdout=said, stderr=subprocess.STDOUT, check=False)


def read(directory: Path, launched: Path) -> Run:
    """What the run in `directory` left; `launched`: what the process said from which it was forked."""
    codes = [int(path.read_text()) for path in sorted(directory.glob("code*"))]
    said = "".join(path.read_text(errors="replace") for path in sorted(directory.glob("said*.txt")))
    results = [json.loads(path.read_text()) for path in sorted(directory.glob("result*.json"))]
    try:
        recording = Recording.load(directory / "run")
    except FileNotFoundError:
        recording = None
    code = next(filter(None, codes), 0) if codes else 1
    said = said if codes else launched.read_text(errors="replace")
    return Run(directory=directory, code=code, said=said, results=results, recording=recording)


def judge(stack: Stack, place: Path, faults: Sequence[str] = FAULTS) -> tuple[dict[str, Cell], float]:
    """All runs of one row, one after the other, and its cells."""
    began = time.perf_counter()
    if stack.missing:
        return {name: Cell(verdict="--", why=[stack.missing]) for name in PROPERTIES}, 0.0
    half, tried = STEPS // 2, [fault for fault in faults if fault not in stack.reasons]
    alone = [planned("healthy", place / "plain")]
    alone += [planned("loss-nan", place / "line", door="line")] if stack.line else []
    start(stack, place, "alone", alone, guarded=False)
    plain = read(place / "plain", place / "alone.txt")
    if plain.code or len(plain.results) != stack.processes or any(len(rows) != STEPS for rows in plain.rows):
        return {name: Cell(verdict="no", why=[f"the unguarded run fails: {_last(plain)}"]) for name in PROPERTIES}, 0.0
    plan = [
        planned("healthy", place / "healthy"),
        *(planned(fault, place / fault) for fault in tried),
        planned("healthy", place / "broken", broken=True),
        planned("healthy", place / "resume", until=half),
        planned("healthy", place / "resume", resume=True),
    ]
    start(stack, place, "guarded", plan, guarded=True)
    healthy, broken, resumed = (read(place / name, place / "guarded.txt") for name in ("healthy", "broken", "resume"))
    faulty = {fault: read(place / fault, place / "guarded.txt") for fault in tried}
    declared = [f"{fault}: {stack.reasons[fault]}" for fault in FAULTS if fault in stack.reasons]
    cells = {
        "found": _all(faulty, partial(_found, located="origin" not in stack.reasons), declared),
        "unchanged": _all(faulty, _unchanged, declared),
        "goes on": _all(faulty, _goes_on, declared),
        "escapes": _all(faulty, _escapes, declared),
        "identical": _cell(_differences(plain, healthy) + _not_quiet(healthy)),
        "our fault": _cell(_our_fault(plain, broken)),
        "resume": _cell(_resume(resumed)),
        "tracker": _tracker(faulty["loss-nan"]) if stack.tracker and "loss-nan" in faulty else Cell(verdict="--"),
        "one line": Cell(verdict="--"),
    }
    if stack.line:
        line = read(place / "line", place / "alone.txt")
        cells["one line"] = _cell(
            [*_found("loss-nan", line), *_unchanged("loss-nan", line), *_escapes("loss-nan", line)]
        )
    located = sum(bool(run.origins()) for run in faulty.values())
    cells["found"].why.insert(0, f"origin in {located} of {len(faulty)}")
    if "origin" in stack.reasons:
        cells["found"].why.append(f"no origin: {stack.reasons['origin']}")
    for name, reason in stack.reasons.items():
        if name in cells and cells[name].verdict != "yes":
            cells[name] = Cell(verdict="--", why=[reason])
    return cells, time.perf_counter() - began


def _cell(problems: list[str]) -> Cell:
    return Cell(verdict="no" if problems else "yes", why=problems)


def _all(runs: Mapping[str, Run], judged: Any, declared: list[str]) -> Cell:
    problems = [f"{fault}: {problem}" for fault, run in runs.items() for problem in judged(fault, run)]
    return Cell(verdict="no" if problems else "yes", why=problems + declared)


def _last(run: Run) -> str:
    lines = [line for line in run.said.splitlines() if line.strip()]
    return f"exit code {run.code}: {lines[-1][:200] if lines else 'nothing said'}"


def _found(fault: str, run: Run, *, located: bool = True) -> list[str]:
    if run.code or run.recording is None:
        return [_last(run)]
    steps = sorted({event["step"] for event in run.incidents()})
    problems = [] if steps == [BAD] else [f"incidents at steps {steps}"]
    problems += [f"finitune failed: {event.get('text')}" for event in run.recording.events("broken")]
    if located and fault in LOCATED and not run.origins():
        whys = [event.get("why_not") for event in run.recording.events("origin")]
        problems.append(f"no origin ({whys})")
    return problems


def _unchanged(_fault: str, run: Run) -> list[str]:
    problems = []
    for rank, rows in enumerate(run.rows):
        for what in ("weights", "state"):
            if len(rows) < BAD or rows[BAD - 1][what] != rows[BAD - 2][what]:
                problems.append(f"rank {rank}: {what} changed")
    return problems or ([] if run.rows else ["no result"])


def _goes_on(fault: str, run: Run) -> list[str]:
    """A GradScaler may skip the spike by itself: times 100 and 65536 it overflows float16."""
    problems = []
    for rank, rows in enumerate(run.rows):
        if len(rows) <= BAD or rows[BAD]["weights"] == rows[BAD - 1]["weights"]:
            problems.append(f"rank {rank}: step {BAD + 1} did not train")
        elif not rows[BAD]["finite_weights"]:
            problems.append(f"rank {rank}: step {BAD + 1} is not finite")
    own = {SPIKE} if fault == "aux-nan+spike" and _pairs(run, "loss_scale") else set()
    skipped = [step for step, flag in _pairs(run, "skipped") if flag and step not in {BAD} | own]
    return problems + ([f"steps {skipped} were discarded too"] if skipped else [])


def _pairs(run: Run, name: str) -> list[tuple[int, float]]:
    if run.recording is None:
        return []
    series = run.recording.signals[name]
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def _escapes(fault: str, run: Run) -> list[str]:
    out = []
    for rank, result in enumerate(run.results):
        last = result["rows"][-1]
        out += [f"rank {rank}: {what} not finite" for what in ("weights", "state") if not last[f"finite_{what}"]]
        out += [f"rank {rank}: checkpoint not finite: {name}" for name in result["poisoned_files"]]
    shown = run.results[-1]["shown"].get(str(BAD), {}) if run.results else {}  # the fault is on the last rank
    hidden = fault in NAN_LOSS and math.isfinite(shown.get("loss", math.nan))
    if hidden and f"step {BAD}: the trainer shows loss" not in run.said:
        out.append(f"the log shows loss {shown['loss']:g} and nobody says otherwise")
    return out


def _differences(plain: Run, other: Run) -> list[str]:
    if other.code:
        return [_last(other)]
    out = []
    for rank, (one, two) in enumerate(zip(plain.results, other.results, strict=False)):
        for before, after in zip(one["rows"], two["rows"], strict=False):
            out += [f"rank {rank}, step {before['step']}: {k} differs" for k in before if before[k] != after[k]]
        if one["shown"] != two["shown"]:
            out.append(f"rank {rank}: the log differs")
    return out[:3] if len(plain.results) == len(other.results) else ["a rank is missing"]


def _not_quiet(run: Run) -> list[str]:
    if run.recording is None:
        return ["no recording"]
    steps = [step for step, _ in _pairs(run, "loss")]
    return [
        *(f"{event['event']} at step {event['step']}" for event in run.recording.events("incident", "broken")),
        *([] if steps == list(range(1, STEPS + 1)) else [f"recorded steps {steps}"]),
    ]


def _our_fault(plain: Run, run: Run) -> list[str]:
    said = "finitune itself failed and left the run alone (RuntimeError: broken on purpose)" in run.said
    return _differences(plain, run) + ([] if said else ["nothing was said"])


def _resume(run: Run) -> list[str]:
    """The result is that of the second half."""
    steps = [step for step, _ in _pairs(run, "loss")]
    rows = [row["step"] for result in run.results for row in result["rows"]]
    if run.code:
        return [_last(run)]
    ended = (
        [] if rows and set(rows) == set(range(STEPS // 2 + 1, STEPS + 1)) else [f"trained steps {sorted(set(rows))}"]
    )
    return ended + ([] if steps == list(range(1, STEPS + 1)) else [f"recorded steps {steps}"])


def _tracker(run: Run | None) -> Cell:
    trackers = run.results[0].get("tracker") if run is not None and run.results else None
    if not trackers:
        return Cell(verdict="--", why=["no tracker is installed"])
    out = []
    for name, seen in trackers.items():
        if not math.isnan(float(seen["loss"].get(str(BAD), 0.0))):
            out.append(f"{name}: the true loss of step {BAD} is not there")
        if not seen["alerts"]:
            out.append(f"{name}: no alert")
    return _cell(out)


def show(table: Mapping[str, dict[str, Cell]]) -> None:
    width = max(map(len, table), default=0)
    print(f"{'':{width}}  " + "  ".join(f"{name:9}" for name in PROPERTIES))
    for row, cells in table.items():
        print(f"{row:{width}}  " + "  ".join(f"{cells[name].verdict:9}" for name in PROPERTIES))
    print()
    for row, cells in table.items():
        for name in PROPERTIES:
            if cells[name].why and cells[name].why != ["origin in 8 of 8"]:
                print(f"{row}, {name}: {'; '.join(cells[name].why)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stacks", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fault", action="append", help="only these faults (may be given several times)")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--keep", type=Path, help="leave what the runs wrote in this directory")
    given = parser.parse_args()
    place = (given.keep or Path(tempfile.mkdtemp(prefix="conformance-"))).resolve()
    chosen = list(stacks(given.stacks))
    began = time.perf_counter()
    with ThreadPoolExecutor(given.jobs) as pool:
        futures = {s.row: pool.submit(judge, s, place / s.row.replace(":", "-"), given.fault or FAULTS) for s in chosen}
        for future in as_completed(futures.values()):
            row = next(row for row, other in futures.items() if other is future)
            cells, seconds = future.result()
            verdicts = ", ".join(f"{name} {cell.verdict}" for name, cell in cells.items())
            print(f"{row} ({seconds:.0f} s): {verdicts}", file=sys.stderr, flush=True)
            for name, cell in cells.items():
                if cell.verdict == "no":
                    print(f"  {name}: {'; '.join(cell.why)}", file=sys.stderr, flush=True)
    table = {row: future.result()[0] for row, future in futures.items()}
    show(table)
    print(f"\n{len(table)} rows in {time.perf_counter() - began:.0f} s")
    if given.json:
        data = {
            row: {name: {"verdict": c.verdict, "why": c.why} for name, c in cells.items()}
            for row, cells in table.items()
        }
        given.json.write_text(json.dumps(data, indent=1) + "\n")
    if not given.keep:
        shutil.rmtree(place, ignore_errors=True)
    return int(any(cell.verdict == "no" for cells in table.values() for cell in cells.values()))


if __name__ == "__main__":
    sys.exit(main())
