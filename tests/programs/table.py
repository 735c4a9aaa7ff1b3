"""What finitune makes of programs it has never seen: one row per program, one column per aspect, and the totals.

    python tests/programs/table.py [FOLDER] [--only NAME ...] [--jobs 2] [--mode heal] [--keep DIR] [--json FILE]

FOLDER holds the programs and their `truth.yaml`; without it the programs beside this file are taken. Exit code 1 when
anything differs from the truth.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.programs.trial import Trial, WrongTruth, tried  # noqa: E402
from tests.programs.truth import ASPECTS, KINDS, truths  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description="finitune against programs that it has never seen")
    parser.add_argument("folder", nargs="?", type=Path, default=HERE, help="programs and their truth.yaml")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these programs")
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time (default 2)")
    parser.add_argument("--mode", choices=["guard", "heal"], default="guard", help="of finitune run (default guard)")
    parser.add_argument("--keep", type=Path, help="leave recordings and outputs in this folder")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    asked = parser.parse_args()
    folder, began = asked.folder.resolve(), time.perf_counter()
    truth = truths(folder)
    names = asked.only or list(truth)

    def row(name: str, place: Path) -> Trial:
        try:
            trial = tried(folder, name, truth[name], place / name, asked.mode)
        except WrongTruth as wrong:
            trial = Trial(name=name, kind=truth[name]["kind"], differs={"watched": f"the truth is wrong: {wrong}"})
        print(f"{time.perf_counter() - began:5.0f} s  {name}", file=sys.stderr, flush=True)
        return trial

    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(asked.jobs) as pool:
        place = (asked.keep or Path(temporary)).resolve()
        trials = list(pool.map(lambda name: row(name, place), names))
    show(trials)
    if asked.json:
        asked.json.write_text(json.dumps([asdict(trial) for trial in trials], indent=1), encoding="utf-8")
    print(f"{len(trials)} programs in {time.perf_counter() - began:.0f} s")
    return int(not all(trial.right for trial in trials))


def show(trials: list[Trial]) -> None:
    """The table, the totals by kind and aspect, and what differs."""
    width = max(len(trial.name) for trial in trials)
    print(f"{'':{width}}  {'kind':9}  " + "  ".join(f"{aspect:9}" for aspect in ASPECTS))
    for trial in trials:
        cells = [_cell(trial, aspect) for aspect in ASPECTS]
        said = f"not run: {trial.missing}" if trial.missing else "  ".join(f"{cell:9}" for cell in cells)
        print(f"{trial.name:{width}}  {trial.kind:9}  {said}".rstrip())
    print()
    for kind in (*KINDS, "all"):
        of = [trial for trial in trials if trial.kind in (kind, "") or kind == "all"]
        if run := [trial for trial in of if not trial.missing]:
            totals = "  ".join(f"{_total(run, aspect):9}" for aspect in ASPECTS)
            print(f"{f'{sum(t.right for t in run)} of {len(run)} right':{width}}  {kind:9}  {totals}")
    print()
    for trial in trials:
        for aspect in ASPECTS:
            if trial.differs.get(aspect):
                print(f"{trial.name}, {aspect}: {trial.differs[aspect]}")


def _cell(trial: Trial, aspect: str) -> str:
    return "-" if aspect not in trial.differs else "no" if trial.differs[aspect] else "yes"


def _total(trials: list[Trial], aspect: str) -> str:
    judged = [trial for trial in trials if aspect in trial.differs]
    return f"{sum(not trial.differs[aspect] for trial in judged)}/{len(judged)}" if judged else "-"


if __name__ == "__main__":
    sys.exit(main())
