"""What all programs that make logs share: a plan of runs, each in a fork that keeps all it prints.

    python log_runs/NAME.py DIRECTORY [RUN...]

makes every run of `RUNS` that is not yet in DIRECTORY. A run leaves there a directory of its name with its log, its
configuration in the format of its framework, and truth.json: the accepted causes (none for a healthy run).
"""

from __future__ import annotations

import gc
import gzip
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # torch itself imports it with the first optimizer: once for all runs

TIMEOUT = 120
"""Seconds after which a run is ended."""
FIRST_SEED = 3000
"""Even. Raised when the figures are to come from runs that nobody has seen; 0, 1000 and 2000 were looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run. `kind` is a fault or a healthy situation of `_world`, `seed` varies everything else.

    `form` is how its log is kept: text, gzip, or a file that the framework writes (state, csv, events).
    """

    kind: str
    seed: int
    precision: str = "fp32"
    variant: str = ""
    ranks: int = 1
    form: str = "text"

    @property
    def name(self) -> str:
        parts = (self.kind, self.variant, self.precision, f"{self.ranks}-ranks" if self.ranks > 1 else "",
                 self.form if self.form != "text" else "", str(self.seed))  # fmt: skip
        return "_".join(part for part in parts if part)

    def choice(self, what: str) -> random.Random:
        """Random numbers for one purpose, the same in each run of this name."""
        return random.Random(f"{what} of {self.name}")


def repeated(seeds: int, kind: str, precisions: Sequence[str], **settings: Any) -> list[Run]:
    """Runs of successive seeds in turn over `precisions`, two seeds each, so that odd and even seeds see them all."""
    return [
        Run(kind=kind, seed=FIRST_SEED + n, precision=precisions[n // 2 % len(precisions)], **settings)
        for n in range(seeds)
    ]


def main(runs: Sequence[Run], make: Callable[[Run, Path], None], truth: Callable[[Run], Sequence[str]]) -> None:
    """Make what is missing; `make(run, directory)` trains, prints, and writes configuration and log files."""
    directory = Path(sys.argv[1])
    chosen = set(sys.argv[2:])
    assert len({run.name for run in runs}) == len(runs)
    gc.freeze()  # what was imported is no garbage of any run
    for run in runs:
        place = directory / run.name
        if (place / "truth.json").exists() or (chosen and run.name not in chosen):
            continue
        shutil.rmtree(place, ignore_errors=True)
        (place / "work").mkdir(parents=True)
        start = time.monotonic()
        codes = _forked(run, make, place)
        if run.form == "text":
            (place / "said.txt").replace(place / "train.log")
        elif run.form == "gzip":
            (place / "train.log.gz").write_bytes(gzip.compress((place / "said.txt").read_bytes(), mtime=0))
        shutil.rmtree(place / "work")
        accepted = list(truth(run))
        seconds = round(time.monotonic() - start, 1)
        told = {"accept": accepted, "kind": run.kind, "seed": run.seed, "exit": codes, "seconds": seconds}
        (place / "truth.json").write_text(json.dumps(told) + "\n")
        print(f"{run.name:50} exit {codes} {seconds:5.1f} s", flush=True)


def _forked(run: Run, make: Callable[[Run, Path], None], place: Path) -> list[int]:
    port = _free_port()
    children: list[int] = []
    for rank in range(run.ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _begin(place, rank, run.ranks, port)
                random.seed(run.seed)
                torch.manual_seed(run.seed)
                make(run, place)
                code = 0
            except BaseException:
                sys.stdout.flush()
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return [_end(child) for child in children]


def _begin(place: Path, rank: int, ranks: int, port: int) -> None:
    """What this process prints goes to a file; what a launcher would set is set."""
    said = os.open(place / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(place / "work")
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}.items():
        os.environ[name] = str(value)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)


def alone() -> None:
    """Take back what a launcher sets, for programs that are started by hand."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR"):
        os.environ.pop(name, None)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _end(child: int) -> int:
    """The exit code of the process; 124 for one that had to be ended."""
    until = time.monotonic() + TIMEOUT
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return 124
        time.sleep(0.02)
