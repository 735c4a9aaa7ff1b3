"""The commands of the story: typed as a user would, shown while they run, kept with all they said."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from finitune.demo.stage import ENVIRONMENT, WIDTH, Outcome
from finitune.finding import UnreadableInput

FINITUNE = (sys.executable, "-c", "from finitune.cli.main import main; raise SystemExit(main())")


def finitune(directory: Path, *words: str, width: int = WIDTH) -> Outcome:
    """`finitune WORDS...` in `directory`, its lines at most `width` long."""
    began = time.monotonic()
    done = subprocess.run(
        [*FINITUNE, *words], cwd=directory, env=_environment(width), text=True, encoding="utf-8", check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return Outcome(
        command=_typed("finitune", *words),
        code=done.returncode,
        output=done.stdout,
        seconds=time.monotonic() - began,
    )


def train(
    directory: Path, console: Console, *, model: str, record: str | None = None, prefix: str = "", mode: str = "guard"
) -> Outcome:
    """The user's script on `model`; with `record` under `finitune run`, recorded there, in that mode."""
    script = ["finetune.py", "--model", model, "--data", "chat.jsonl", "--eval", "chat-eval.jsonl"]
    script += ["--prefix", prefix] if prefix else []
    asked = ["--mode", mode] if mode != "guard" else []
    watched = ["run", *asked, "--run-dir", record, "--"] if record else []
    typed = _typed(*(["finitune", *watched] if record else []), "python", *script)
    command = [*(FINITUNE if record else ()), *watched, sys.executable, *script]
    steps: list[dict[str, float]] = []
    evaluations: list[float] = []
    said: list[str] = []
    began = time.monotonic()
    total = json.loads((directory / "training_args.json").read_text(encoding="utf-8"))["max_steps"]
    with _bar(console, "starting", total) as advance:
        for line in _lines(command, directory, console.width - 2):
            values = _values(line)
            if values is None:
                said.append(line)
            elif "step" in values:
                steps.append(values)
                advance(len(steps), f"loss {values['loss']:.2f}, scale {values['loss_scale']:.0f}")
            else:
                evaluations.append(values["eval_loss"])
                advance(len(steps), f"evaluation loss {values['eval_loss']:.2f}")
    return Outcome(
        command=typed,
        code=int(said.pop()),
        output="\n".join(said),
        seconds=time.monotonic() - began,
        steps=steps,
        evaluations=evaluations,
    )


def make_base(recipe: dict[str, int], console: Console) -> Path:
    """The directory of the base model, pretrained now unless it is cached; in a process of its own, as all training."""
    said: list[str] = []
    with _bar(console, "base model", None) as advance:
        for line in _lines([sys.executable, "-m", "finitune.demo.yi.base", json.dumps(recipe)], Path.cwd(), WIDTH):
            values = _values(line)
            if values is None:
                said.append(line)
            elif "directory" in values:
                advance(1, "base model ready", 1)
                said.append(values["directory"])
            else:
                if values["step"] == 1:
                    console.print("pretraining a base model once, for a minute or two; it is cached afterwards")
                advance(values["step"], f"loss {values['loss']:.2f}", values["steps"])
    if said.pop() != "0":
        raise UnreadableInput(f"the base model could not be made: {said[-1] if said else 'no word from its process'}")
    return Path(said[-1])


def _lines(command: list[str], directory: Path, width: int) -> Iterator[str]:
    """Each line that `command` says, then its exit code."""
    with subprocess.Popen(
        command, cwd=directory, env=_environment(width), text=True, encoding="utf-8", errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout
        for line in process.stdout:
            yield line.rstrip("\n")
    yield str(process.returncode)


def _values(line: str) -> dict[str, Any] | None:
    """The object of a JSON line; None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        return json.loads(line)
    except ValueError:
        return None


def _typed(*words: str) -> str:
    return "$ " + shlex.join(words)


def _environment(width: int) -> dict[str, str]:
    return {**os.environ, **ENVIRONMENT, "COLUMNS": str(min(width, WIDTH))}


@contextmanager
def _bar(console: Console, text: str, total: int | None) -> Iterator[Callable[..., None]]:
    """A progress bar that vanishes when it is done; yields `advance(completed, text, total)`."""
    columns = (BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(text, total=total)

        def advance(completed: int, text: str, total: int | None = total) -> None:
            progress.update(task, completed=completed, description=text, total=total)

        yield advance
