"""What `finitune diagnose LOG` makes of the logs of real frameworks: broken runs and healthy ones.

    python benchmarks/logs_diagnose.py [--program NAME ...] [--verbose]

The programs of `log_runs/` train tiny models on the CPU, as their users would, and keep all that they print; what is
missing in `.cache/log-runs` is made first. A run is asked by its log alone, with its configuration, and with the model
that the configuration names as well.
Right is a cause that its fault accepts. The weights were worked out on the runs with an even seed; those with an odd
one are printed apart, and count.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import finitune
from finitune.demo.runner import LAPTOP
from finitune.finding import Diagnosis, UnreadableInput

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "benchmarks" / "log_runs"
GYM = ROOT / "src" / "finitune" / "gym"
CACHE = ROOT / ".cache" / "log-runs"
LOGS = ("train.log", "trainer_state", "metrics", "events")
JOBS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One file of `log_runs/`."""

    name: str
    framework: str
    python: str
    missing: str

    @property
    def directory(self) -> Path:
        """Where its logs are kept: another place for another version of what makes them."""
        sha = hashlib.sha256()
        for path in [*sorted(PROGRAMS.glob("_*.py")), PROGRAMS / f"{self.name}.py", *sorted(GYM.rglob("*.py"))]:
            sha.update(path.read_bytes())
        return CACHE / f"{self.name}-{sha.hexdigest()[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A run and what was said of it: by its log alone, with its configuration, and with its model too."""

    framework: str
    place: Path
    truth: dict[str, Any]
    alone: Sequence[str]
    configured: Sequence[str]
    modelled: Sequence[str]
    said: str

    @property
    def accepted(self) -> set[str]:
        return set(self.truth["accept"])

    @property
    def unseen(self) -> bool:
        return self.truth["seed"] % 2 == 1

    def right(self, ranked: Sequence[str], *, first: int = 1) -> bool:
        return bool(self.accepted & set(ranked[:first]))


def programs() -> Iterator[Program]:
    """Every program, without importing any."""
    for path in sorted(PROGRAMS.glob("[a-z]*.py")):
        said = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id in ("FRAMEWORK", "NEEDS", "PYTHON")
        }
        python, made_by = said.get("PYTHON", (None, None))
        where = str(ROOT / python) if python else sys.executable
        absent = [name for name in said.get("NEEDS", ()) if importlib.util.find_spec(name) is None]
        missing = f"not installed: {', '.join(absent)}" if absent else ""
        if python and not Path(where).exists():
            missing = f"{python} is not there: {made_by}"
        yield Program(name=path.stem, framework=said["FRAMEWORK"], python=where, missing=missing)


def make(program: Program) -> str:
    """Let the program make what is missing of its runs; returns what went wrong."""
    directory = program.directory
    directory.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join((str(LAPTOP), str(Path(finitune.__file__).parents[1]))),
        "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    command = [program.python, str(PROGRAMS / f"{program.name}.py"), str(directory)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return f"{program.name}: {done.stderr.strip().splitlines()[-1:]}" if done.returncode else ""


def answers(program: Program) -> Iterator[Answer]:
    for place in sorted(path.parent for path in program.directory.glob("*/truth.json")):
        log = next(path for path in place.iterdir() if path.name.startswith(LOGS))
        configs = sorted(path for path in place.iterdir() if path.name.startswith("config."))
        alone, said = causes_of(log)
        truth = json.loads((place / "truth.json").read_text())
        model = place / "model"
        yield Answer(
            framework=program.framework, place=place, truth=truth, alone=alone, said=said,
            configured=causes_of(log, configs)[0],
            modelled=causes_of(log, configs, model if model.exists() else None)[0],
        )  # fmt: skip


def causes_of(log: Path, configs: Sequence[Path] = (), model: Path | None = None) -> tuple[list[str], str]:
    """The ranked causes of the last incident, and its text; no causes and no text for a healthy run."""
    try:
        found: Diagnosis = finitune.diagnose(log, configs=[str(path) for path in configs], model=model)
    except UnreadableInput as error:
        return ["unreadable"], f"unreadable: {error}"
    if not found.incidents:
        return [], ""
    last = found.incidents[-1]
    return [cause.cause for cause in last.causes] or ["unknown"], f"{last.symptom}: {last.message}"


def table(title: str, found: Sequence[Answer], groups: Iterable[tuple[str, Sequence[Answer]]]) -> None:
    print(f"\n{title:28} {'runs':>4}   first three   first   with config   and model   | healthy ones   called so")
    for name, chosen in [*groups, ("all", found)]:
        broken = [one for one in chosen if one.accepted]
        healthy = [one for one in chosen if not one.accepted]
        cells = [_share([one.right(one.alone, first=3) for one in broken]),
                 _share([one.right(one.alone) for one in broken]),
                 _share([one.right(one.configured) for one in broken]),
                 _share([one.right(one.modelled) for one in broken])]  # fmt: skip
        sound = sum(not (one.alone or one.configured) for one in healthy)
        print(
            f"{name:28} {len(broken):4}   {cells[0]:>11}   {cells[1]:>5}   {cells[2]:>11}   {cells[3]:>9}   | "
            f"{len(healthy):12}   {sound:9}"
        )


def _share(right: Sequence[bool]) -> str:
    return f"{sum(right) / len(right):.0%}" if right else "--"


def grouped(found: Sequence[Answer], key: Any) -> list[tuple[str, list[Answer]]]:
    names = sorted({key(one) for one in found})
    return [(name, [one for one in found if key(one) == name]) for name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", action="append", help="a program of log_runs/; may be repeated")
    parser.add_argument("--verbose", action="store_true", help="list every miss")
    given = parser.parse_args()
    chosen = [one for one in programs() if not given.program or one.name in given.program]
    for one in chosen:
        if one.missing:
            print(f"{one.framework}: left out, {one.missing}")
    chosen = [one for one in chosen if not one.missing]
    start = time.monotonic()
    with ThreadPoolExecutor(JOBS) as pool:
        failed = [said for said in pool.map(make, chosen) if said]
    print("\n".join([*failed, f"logs made in {time.monotonic() - start:.0f} s"]))
    found = [answer for one in chosen for answer in answers(one)]
    for title, odd in (("even seeds", False), ("odd seeds", True)):
        part = [one for one in found if one.unseen is odd]
        table(f"{title}: framework", part, grouped(part, lambda one: one.framework))
    broken = [one for one in found if one.accepted and one.unseen]
    table("odd seeds: cause", broken, grouped(broken, _cause))
    table("all: framework", found, grouped(found, lambda one: one.framework))
    if given.verbose:
        misses(found)
    return 1 if failed else 0


def _cause(one: Answer) -> str:
    return one.truth["accept"][0]


def misses(found: Iterable[Answer]) -> None:
    for one in found:
        name = f"{one.framework}/{one.place.name}"
        if one.unseen:
            continue
        if not one.accepted and (one.alone or one.configured):
            print(f"not healthy: {name}: {one.said or ', '.join(one.configured)}")
        elif one.accepted and not all(map(one.right, (one.alone, one.configured, one.modelled))):
            print(f"missed: {name} ({_cause(one)}): {', '.join(one.alone) or 'healthy'} | with config "
                  f"{', '.join(one.configured) or 'healthy'} | and model {', '.join(one.modelled) or 'healthy'} | "
                  f"{one.said}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
