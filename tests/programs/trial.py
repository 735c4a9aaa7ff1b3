"""One program of a stranger, run alone and under `finitune run`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.forked import Forked
from tests.programs.truth import Ended, Truth, judged

from finitune.diagnosis.diagnose import diagnose
from finitune.finding import UnreadableInput
from finitune.reports.json import render

SCRIPTS = Path(sysconfig.get_path("scripts"))
TIMEOUT = 280.0  # seconds for one run; the slowest program takes 15 on a quiet core
ONE_THREAD = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


FRAMEWORKS = {"transformers": "transformers.trainer", "lightning": "lightning"}
"""What a program needs -> what is imported before it runs alone, which takes seconds."""
TEARDOWN, TEARDOWNS = re.compile(r"terminate called without an active exception|Signal 6 \(SIGABRT\) received"), 3
"""What is said when gloo aborts while a rank ends, which it does now and then; so often it is tried again."""
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}")
"""As loggers write it: DeepSpeed, where it is installed, says something when transformers imports it."""


class WrongTruth(AssertionError):
    """The program alone does not do what the truth says of it, so nothing can be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """`differs` maps each aspect that was judged to what is wrong with it, "" where nothing is."""

    name: str
    kind: str
    differs: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""  # why it was not run
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        return not any(self.differs.values())

    def wrong(self, known: Collection[str] = ()) -> str:
        """What differs, a line each, but for aspects that are `known` to; empty where nothing does."""
        lines = [f"{aspect}: {what}" for aspect, what in self.differs.items() if what and aspect not in known]
        return "\n  ".join([f"{self.name} ({self.kind})", *lines]) if lines else ""


def tried(folder: Path, name: str, truth: Truth, place: Path, mode: str = "guard") -> Trial:
    """Run one program alone and watched, and judge. Outputs and recording are left in `place`.

    In the mode `heal` a program that would be stopped may reach its end.
    """
    if mode == "heal":
        ends = truth.get("ends", truth.get("exit", 0))
        truth = {**truth, "ends": [*(ends if isinstance(ends, list) else [ends]), truth.get("exit", 0)]}
    if lacking := [need for need in truth.get("needs", ()) if not _is_here(need)]:
        return Trial(name=name, kind=truth["kind"], missing=f"needs {', '.join(lacking)}")
    began, program, run_dir = time.perf_counter(), folder / f"{name}.py", place / "run"
    command = _command(program, truth)
    frameworks = [module for need, module in FRAMEWORKS.items() if need in truth.get("needs", ())]
    plain = _whole(lambda: _alone(command, place / "plain", frameworks))
    if plain.code != truth.get("exit", 0):
        raise WrongTruth(f"{name}: alone it ends with {plain.code}, not {truth.get('exit', 0)}\n{plain.err[-2000:]}")
    under_guard = [str(SCRIPTS / "finitune"), "run", "--mode", mode, "--run-dir", str(run_dir), "--", *command]
    watched = _whole(lambda: _anew(run_dir, under_guard, place / "watched"))
    said = diagnosis(run_dir)
    differs = judged(program, truth, plain, watched, said)
    if frameworks and any(differs.values()):  # as where an import warns, once
        differs = judged(program, truth, _whole(lambda: ended(command, place / "plain")), watched, said)
    if not truth.get("recording", True) and run_dir.exists():
        differs["silent"] = "a folder was made for a command that never imported torch"
    return Trial(name=name, kind=truth["kind"], differs=differs, seconds=time.perf_counter() - began)


def _whole(run: Callable[[], Ended]) -> Ended:
    """How a run ends; one that gloo has aborted is run once more."""
    ended = run()
    for _ in range(TEARDOWNS):
        if not TEARDOWN.search(ended.err):
            break
        ended = run()
    return ended


def _alone(command: Sequence[str], place: Path, frameworks: Sequence[str]) -> Ended:
    """How a program ends that nobody watches, where modules of frameworks are imported already. One that forks ranks
    starts in a Python of its own: below a fork, gloo's threads and the end of its group often wait for each other.
    """
    if command[0] != sys.executable or command[1].startswith("-"):
        return ended(command, place)
    if "torch.distributed" in Path(command[1]).read_text(encoding="utf-8"):
        return ended(command, place)
    shutil.rmtree(place, ignore_errors=True)
    process = Forked(command[1:], place, ONE_THREAD, frameworks)
    try:
        code = process.wait(TIMEOUT)
    finally:
        process.kill()
    return _ended(code, place)


def _anew(run_dir: Path, command: Sequence[str], place: Path) -> Ended:
    shutil.rmtree(run_dir, ignore_errors=True)
    return ended(command, place)


def diagnosis(run_dir: Path) -> dict[str, Any] | None:
    """What `finitune diagnose --format json` prints for a recording, made in this process because imports are most of
    what the command takes; None where there is none to read.
    """
    try:
        return json.loads(render(diagnose(str(run_dir))))
    except UnreadableInput:
        return None


def ended(command: Sequence[str], place: Path) -> Ended:
    """Run a command in the folder `place`, which keeps its output, with one thread per process and no network."""
    place.mkdir(parents=True, exist_ok=True)
    with (
        (place / "stdout.txt").open("w", encoding="utf-8") as out,
        (place / "stderr.txt").open("w", encoding="utf-8") as err,
        subprocess.Popen(
            command,
            cwd=place,
            env={**os.environ, **ONE_THREAD},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=_answers_to_control_c,
        ) as process,
    ):
        try:
            code = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            err.write(f"\nno end after {TIMEOUT:.0f} s\n")
    return _ended(code, place)


def _ended(code: int, place: Path) -> Ended:
    printed = [
        TIME.sub("TIME", (place / name).read_text(encoding="utf-8", errors="replace"))
        for name in ("stdout.txt", "stderr.txt")
    ]
    return Ended(code=code if code >= 0 else 128 - code, out=printed[0], err=printed[1])


def _answers_to_control_c() -> None:
    """A job in the background of a shell ignores SIGINT, and so would the program."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _is_here(need: str) -> bool:
    return bool(shutil.which(need)) if "+" in need else importlib.util.find_spec(need) is not None


def _command(program: Path, truth: Truth) -> list[str]:
    words = truth.get("command", "{python} {file}").split()
    return [word.format(python=sys.executable, torchrun=SCRIPTS / "torchrun", file=program) for word in words]
