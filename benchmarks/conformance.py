"""Integration x property: every stack that finitune watches, put through the same eight faults.

    python benchmarks/conformance.py [--fault FAULT] [--jobs 2] [--keep DIR] [STACK[:VARIANT] ...]

A stack is a file in `benchmarks/stacks/`, found by its name: a training program as its users write it, without a word
of finitune. It declares `VARIANTS`, each a row of the table; `NEEDS` (modules) or `PYTHON` (an environment of its own),
without which its rows are not run and the table says so; `TRACKER` (variants that report to the framework's tracker);
and `REASONS` (fault or "origin" -> why it cannot be there). Every run is a process of its own, guarded by `finitune run
-- python ...`; the runs of a stack are forked from a process that has done no more than import it. What the columns
mean is said in `properties.py`. Exit code 1 when a cell is "no".
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import properties
from properties import INTO, PROPERTIES, Run
from stacks._faults import FAULTS, STEPS

from finitune.demo.runner import LAPTOP
from finitune.recording import Recording

ROOT = Path(__file__).parents[1]
STACKS = ROOT / "benchmarks" / "stacks"
DECLARED = ("VARIANTS", "PROCESSES", "NEEDS", "PYTHON", "TRACKER", "REASONS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A file of `benchmarks/stacks`; `missing` says why it cannot be run here."""

    name: str
    variants: Sequence[str]
    processes: int
    reasons: Mapping[str, str]
    tracked: Sequence[str]
    python: str
    missing: str


@dataclass(slots=True, kw_only=True)
class Row:
    """One variant of a stack: what is wrong by property (nothing: the cell is "yes"), and what got through where."""

    wrong: Mapping[str, Sequence[str]]
    notes: Sequence[str] = ()
    faulty: int = 0
    saved_tensors: int = 0
    escapes: Counter[str] = field(default_factory=Counter)

    def cell(self, name: str) -> str:
        return "--" if name not in self.wrong else "no" if self.wrong[name] else "yes"


def stacks(chosen: Sequence[str] = ()) -> Iterator[Stack]:
    """Every stack there is, or the chosen ones, without importing any."""
    for path in sorted(STACKS.glob("[a-z]*.py")):
        said = _constants(path)
        variants = [v for v in said["VARIANTS"] if not chosen or {path.stem, f"{path.stem}:{v}"} & set(chosen)]
        if variants:
            python, missing = _python(said)
            yield Stack(
                name=path.stem,
                variants=variants,
                processes=said.get("PROCESSES", 1),
                reasons=said.get("REASONS", {}),
                tracked=said.get("TRACKER", ()),
                python=python,
                missing=missing,
            )


def _constants(path: Path) -> dict[str, Any]:
    """What the module declares, read without running it."""
    found: dict[str, Any] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in DECLARED:
                found[name] = ast.literal_eval(value)
    return found


def _python(said: Mapping[str, Any]) -> tuple[str, str]:
    """The interpreter of a stack, and what it lacks."""
    if "PYTHON" in said:
        place, variable, made_by = said["PYTHON"]
        python = os.environ.get(variable) or str(ROOT / place)
        return python, "" if Path(python).exists() else f"{place} is not there; `{made_by}` makes it"
    absent = [name for name in said.get("NEEDS", ()) if importlib.util.find_spec(name) is None]
    return sys.executable, f"not installed: {', '.join(absent)}" if absent else ""


def planned(variant: str, fault: str, directory: Path, **other: Any) -> dict[str, Any]:
    """One run as `stacks/_scenario.py` reads it."""
    usual = {"door": "command", "until": STEPS, "resume": False, "broken": False}
    return {"variant": variant, "fault": fault, "directory": str(directory), **usual, **other}


def start(stack: Stack, place: Path, name: str, plan: list[dict[str, Any]], *, guarded: bool) -> None:
    """Make the runs of `plan`, each in a process of its own, forked from one that has imported the stack."""
    place.mkdir(parents=True, exist_ok=True)
    file = place / f"{name}.json"
    file.write_text(json.dumps(plan))
    command = [stack.python, str(STACKS / f"{stack.name}.py"), str(file)]
    if stack.processes > 1:
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={stack.processes}"]
    if guarded:
        command = [sys.executable, "-m", "finitune", "run", "--run-dir", str(place / "none"), "--", *command]
    paths = [*([LAPTOP] if stack.python != sys.executable else []), ROOT / "src", os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore", "PYTHONPATH": os.pathsep.join(map(str, filter(None, paths))),
    }  # fmt: skip
    with (place / f"{name}.txt").open("w") as said:
        subprocess.run(command, env=environment, cwd=place, stdout=said, stderr=subprocess.STDOUT, check=False)


def read(directory: Path, launched: Path) -> Run:
    """What the run in `directory` left; `launched`: what the process said from which it was forked."""
    codes = [int(path.read_text()) for path in sorted(directory.glob("code*"))]
    said = [path.read_text(errors="replace") for path in sorted(directory.glob("said*.txt"))]
    try:
        recording = Recording.load(directory / "run")
    except FileNotFoundError:
        recording = None
    return Run(
        code=next(filter(None, codes), 0) if codes else 1,
        said="".join(said) if codes else launched.read_text(errors="replace"),
        results=[json.loads(path.read_text()) for path in sorted(directory.glob("result*.json"))],
        recording=recording,
    )


def judge(stack: Stack, place: Path, faults: Sequence[str] = FAULTS) -> dict[str, Row]:
    """All runs of one stack, one after the other, and its rows."""
    tried = [fault for fault in faults if fault not in stack.reasons]
    alone, guarded = [], []
    for variant in stack.variants:
        at = place / variant
        alone += [planned(variant, "healthy", at / "plain"), planned(variant, "loss-nan", at / "line", door="line")]
        guarded += [
            planned(variant, "healthy", at / "healthy"),
            *(planned(variant, fault, at / fault) for fault in tried),
            planned(variant, "healthy", at / "broken", broken=True),
            planned(variant, "healthy", at / "resume", until=STEPS // 2),
            planned(variant, "healthy", at / "resume", resume=True),
        ]
    start(stack, place, "alone", alone, guarded=False)
    start(stack, place, "guarded", guarded, guarded=True)
    return {
        f"{stack.name}:{v}": _row(stack, place, place / v, tried, tracked=v in stack.tracked) for v in stack.variants
    }


def _row(stack: Stack, place: Path, at: Path, tried: Sequence[str], *, tracked: bool) -> Row:
    plain, line = (read(at / name, place / "alone.txt") for name in ("plain", "line"))
    healthy, broken, resumed = (read(at / name, place / "guarded.txt") for name in ("healthy", "broken", "resume"))
    faulty = {fault: read(at / fault, place / "guarded.txt") for fault in tried}
    if plain.code or len(plain.rows) != stack.processes or any(len(rows) != STEPS for rows in plain.rows):
        return Row(wrong={name: [f"the unguarded run fails: {properties.ended(plain)}"] for name in PROPERTIES})
    located = "origin" not in stack.reasons
    wrong: dict[str, list[str]] = {name: [] for name in ("found", "unchanged", "goes on", "escapes")}
    for fault, run in faulty.items():
        for name, problems in properties.of_faulty(fault, run, located=located).items():
            wrong[name] += [f"{fault}: {problem}" for problem in problems]
    wrong["identical"] = properties.differences(plain, healthy) + properties.not_quiet(healthy)
    wrong["resume"] = properties.resume(resumed)
    wrong["our fault"] = properties.our_fault(plain, broken)
    through_line = properties.of_faulty("loss-nan", line, located=located)
    wrong["one line"] = [problem for problems in through_line.values() for problem in problems]
    if tracked and "loss-nan" in faulty:
        wrong["tracker"] = properties.tracker(faulty["loss-nan"])
    origins = sum(any(event.get("origin") for event in run.events("origin")) for run in faulty.values())
    judged = [*faulty.items(), ("loss-nan", line)]
    return Row(
        wrong=wrong,
        notes=[f"origin in {origins} of {len(faulty)}", *(f"{name}: {why}" for name, why in stack.reasons.items())],
        faulty=len(judged),
        saved_tensors=sum(result["saved_tensors"] for _, run in judged for result in run.results),
        escapes=Counter(into for fault, run in judged for into, _ in properties.escapes(fault, run)),
    )


def show(table: Mapping[str, Row], missing: Mapping[str, str]) -> None:
    """The table, what is wrong or declared, and how much got through."""
    width = max(map(len, [*table, *missing]), default=0)
    print(f"\n{'':{width}}  " + "  ".join(f"{name:9}" for name in PROPERTIES))
    for name, row in table.items():
        print(f"{name:{width}}  " + "  ".join(f"{row.cell(p):9}" for p in PROPERTIES))
    for name, why in missing.items():
        print(f"{name:{width}}  not run: {why}")
    print()
    for name, row in table.items():
        print("\n".join(f"{name}, {note}" for note in [*row.notes, *_problems(row)]))
    through = sum((row.escapes for row in table.values()), Counter())
    each = ", ".join(f"{into} {through[into]}" for into in INTO)
    faulty, tensors = (sum(getattr(row, what) for row in table.values()) for what in ("faulty", "saved_tensors"))
    print(f"\nescapes: {through.total()} ({each}) in {faulty} faulty runs; {tensors} tensors of checkpoints were read")


def _problems(row: Row) -> list[str]:
    return [f"{name}: {'; '.join(problems)}" for name, problems in row.wrong.items() if problems]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stacks", nargs="*")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only these (may be given several times)")
    parser.add_argument("--jobs", type=int, default=2, help="stacks side by side")
    parser.add_argument("--keep", type=Path, help="leave what the runs wrote in this directory, which is made")
    given = parser.parse_args()
    if given.keep and given.keep.exists():
        parser.error(f"--keep: {given.keep} is there already")
    chosen = list(stacks(given.stacks))
    if not chosen:
        parser.error(f"no such stack; there are {', '.join(stack.name for stack in stacks())}")
    place = (given.keep or Path(tempfile.mkdtemp(prefix="conformance-"))).resolve()
    began = time.perf_counter()
    here = [stack for stack in chosen if not stack.missing]

    def rows_of(stack: Stack) -> dict[str, Row]:
        rows = judge(stack, place / stack.name, given.fault or FAULTS)
        for name, row in rows.items():
            said = "; ".join(_problems(row)) or "sound"
            print(f"{time.perf_counter() - began:5.0f} s  {name}: {said}", file=sys.stderr, flush=True)
        return rows

    with ThreadPoolExecutor(given.jobs) as pool:
        table = {name: row for rows in pool.map(rows_of, here) for name, row in rows.items()}
    missing = {
        f"{stack.name}:{variant}": stack.missing for stack in chosen if stack.missing for variant in stack.variants
    }
    show(table, missing)
    print(f"{len(table)} rows in {time.perf_counter() - began:.0f} s, {len(missing)} not run")
    if not given.keep:
        shutil.rmtree(place, ignore_errors=True)
    return int(any(row.cell(name) == "no" for row in table.values() for name in PROPERTIES))


if __name__ == "__main__":
    sys.exit(main())
