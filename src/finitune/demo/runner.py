"""Run a story: each step as typed, then whether it shows what it should, and the table at the end.

Everything happens in a copy of the example, `runs/demo-NAME-TIME`; `story.json` and one log per step stay there.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from finitune.demo.stage import ENVIRONMENT, WIDTH, Outcome, Stage, Step, mark, show, summary
from finitune.demo.story import Expect, Scene, Story, missing
from finitune.finding import UnreadableInput
from finitune.recording import Recording, new_directory, write_json

LAPTOP = Path(__file__).parent / "laptop"
LIMIT = 900.0
"""Seconds after which a command of a story is ended: a whole story takes less than 180."""
COMMANDS = {
    "finitune": "finitune",
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.accelerate_cli",
}
LOSES = 0.95
"""A run has learnt when the mean loss of its last fifth is below this share of that of its first fifth."""
LONGEST_LINE = 160
LAST_LINES = 15
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


def main(story: Story) -> int:
    """Run `story` in `runs/demo-NAME-TIME`; 0 when every step passed."""
    lacking = missing(story)
    if lacking:
        how = f": {story.install}" if story.install else ""
        raise UnreadableInput(f"finitune demo {story.name} needs {', '.join(lacking)}{how}")
    directory = new_directory(f"demo-{story.name}-")
    stage = run_story(story, directory, Console(highlight=False))
    return 0 if all(step.passed for step in stage.steps) else 1


def run_story(story: Story, directory: Path, console: Console) -> Stage:
    """Every step of `story` in a copy of the example at `directory`, the table, and `story.json`."""
    stage = Stage(directory=directory.resolve(), console=console)
    began = time.monotonic()
    console.print(Text(story.title, style="bold"), soft_wrap=True)
    ignored = shutil.ignore_patterns("make_model.py", "__pycache__")
    shutil.copytree(story.directory, stage.directory, ignore=ignored, dirs_exist_ok=True)
    environment = _environment(stage.directory)
    seen: list[dict[str, Any]] = []
    for number, scene in enumerate(story.steps, start=1):
        console.print()
        console.print(Text(f"{number}  {scene.name}: {scene.says}", style="bold"), soft_wrap=True)
        lines, wrong = _run_step(stage, scene, number, environment)
        step = stage.steps[-1]
        seen.append(
            {
                "name": scene.name, "passed": step.passed, "lines": lines, "wrong": wrong, "seconds": step.seconds,
                "commands": [{"command": o.command, "exit": o.code} for o in step.outcomes],
            }
        )  # fmt: skip
        write_json(stage.directory / "story.json", {"story": story.name, "title": story.title, "steps": seen})
    console.print()
    console.print(summary(stage.steps))
    console.print()
    console.print(Text(f"{time.monotonic() - began:.0f} s; everything lies in {stage.directory}"), soft_wrap=True)
    return stage


def _run_step(stage: Stage, scene: Scene, number: int, environment: dict[str, str]) -> tuple[list[str], list[str]]:
    """Run one step, show it and add it to the stage; returns what was seen, and what failed."""
    outcomes: list[Outcome] = []
    for command in scene.run:
        terminal = stage.console.is_terminal
        with stage.console.status(Text(command, style="dim")) if terminal else nullcontext():
            outcomes.append(_run_command(command, stage.directory, environment))
    output = "\n".join(outcome.output for outcome in outcomes)
    log = stage.directory / "logs" / f"{number}-{re.sub(r'[^A-Za-z0-9.-]+', '-', scene.name)}.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("".join(f"{o.command}\n{o.output}\n(exit code {o.code})\n" for o in outcomes), encoding="utf-8")

    lines, wrong = [], []
    for line, passed in _judge(scene.expect, outcomes, output, stage.directory, environment):
        (lines if passed else wrong).append(line)
    for outcome in outcomes[:-1]:
        show(stage, outcome, [])
    # The terminal has the whole line, the table what was looked for in it.
    whole = [next((said.strip() for said in output.splitlines() if line in said), line) for line in lines]
    show(stage, outcomes[-1], [_cut(line) for line in dict.fromkeys(whole)])
    stage.console.print(mark(passed=not wrong), *([Text("; ".join(wrong))] if wrong else []), soft_wrap=True)
    if wrong:
        stage.console.print(Text(f"the last lines of {log}:", style="dim"), soft_wrap=True)
        for line in output.rstrip().splitlines()[-LAST_LINES:]:
            stage.console.print(Text(f"  {_cut(line)}"), soft_wrap=True)
    result = "; ".join(_cut(line) for line in (wrong or lines)) or f"exit code {outcomes[-1].code}"
    stage.steps.append(Step(title=scene.name, result=result, passed=not wrong, outcomes=outcomes))
    return lines, wrong


def _judge(
    expect: Expect, outcomes: Sequence[Outcome], output: str, directory: Path, environment: dict[str, str]
) -> Iterator[tuple[str, bool]]:
    """What was seen for each thing expected, and whether it passed."""
    said = output.splitlines()
    for pattern in expect.shows:
        found = next((match for line in said if (match := re.search(pattern, line))), None)
        yield (found[0].strip(), True) if found else (f"no line matches {pattern}", False)
    for pattern in expect.lacks:
        line = next((line for line in said if re.search(pattern, line)), None)
        if line is not None:
            yield f"a line matches {pattern}: {line.strip()}", False
    if expect.finds is not None:
        yield from _found(expect.finds, _again("check", outcomes, directory, environment))
    if expect.cause is not None or expect.proved is not None:
        yield from _explained(expect, _again("diagnose", outcomes, directory, environment))
    if expect.learns is not None:
        yield _learnt(directory / expect.learns)
    if expect.exit is not None:
        codes = [outcome.code for outcome in outcomes]
        wanted = codes[-1] != 0 if expect.exit == "not 0" else codes[-1] == expect.exit
        passed = not any(codes) if expect.exit == 0 else wanted
        if not passed:
            yield f"exit code {', '.join(map(str, codes))} (expected {expect.exit})", False
        elif expect.exit != 0:
            yield f"exit code {codes[-1]}", True


def _found(slugs: Sequence[str], check: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    grave = [f for f in check["findings"] if f["severity"] in ("error", "warning")]
    for slug in slugs:
        finding = next((f for f in grave if f["cause"] == slug), None)
        yield (f"{finding['severity']} {slug}: {finding['message']}", True) if finding else (f"no {slug} found", False)
    if not slugs:
        yield ("nothing found", True) if not grave else (f"found {', '.join(f['cause'] for f in grave)}", False)


def _explained(expect: Expect, diagnosis: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    if not diagnosis["incidents"] or not diagnosis["incidents"][0]["causes"]:
        yield "no incident with a cause", False
        return
    incident = diagnosis["incidents"][0]
    cause, origin = incident["causes"][0], incident["origin"]
    where = f"{origin['module']}, {origin['op']} ({origin['phase']})" if origin else "not located"
    proved = "proved" if cause["proved"] else "not proved"
    passed = expect.cause in (None, cause["cause"]) and expect.proved in (None, cause["proved"])
    yield f"step {incident['step']}, {incident['symptom']}: {where}; {cause['cause']}, {proved}", passed


def _learnt(run_dir: Path) -> tuple[str, bool]:
    try:
        loss = Recording.load(run_dir).signals["loss"]
    except FileNotFoundError:
        return f"{run_dir.name} holds no recording", False
    values = [float(value) for value in loss.values]
    if len(values) < 2:
        return f"{len(values)} losses recorded", False
    some = max(1, len(values) // 5)
    first, last = sum(values[:some]) / some, sum(values[-some:]) / some
    passed = all(map(math.isfinite, values)) and last < LOSES * first
    return f"loss {first:.2f} -> {last:.2f} in {len(values)} steps", passed


def _again(verb: str, outcomes: Sequence[Outcome], directory: Path, environment: dict[str, str]) -> dict[str, Any]:
    """The last `finitune VERB` of a step once more, for its JSON."""
    typed = [o.command[2:] for o in outcomes if shlex.split(o.command[2:])[:2] == ["finitune", verb]]
    if not typed:
        raise UnreadableInput(f"story.yaml: a step expects something of finitune {verb} but runs none")
    answer = _run_command(f"{typed[-1]} --format json", directory, environment, errors=False)
    try:
        return json.loads(answer.output)
    except ValueError:
        last = (answer.output.strip().splitlines() or ["nothing"])[-1]
        raise UnreadableInput(f"{answer.command} said: {last} (expected JSON)") from None


def _run_command(command: str, directory: Path, environment: dict[str, str], *, errors: bool = True) -> Outcome:
    """One command by bash, ended with all its children when it takes too long; `errors`: with what it says there."""
    began = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=directory, env=environment, start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
        text=True, encoding="utf-8", errors="replace",
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output = f"{process.communicate()[0]}\nended after {LIMIT:.0f} s"
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        raise
    plain = _ESCAPE.sub("", output).replace("\r\n", "\n").replace("\r", "\n")
    return Outcome(command=f"$ {command}", code=process.returncode, output=plain, seconds=time.monotonic() - began)


def _environment(directory: Path) -> dict[str, str]:
    """That of a user who typed the commands here, with the commands of this very Python, offline, on the laptop."""
    scripts = directory / ".commands"
    scripts.mkdir()
    for name, module in {"python": "", **COMMANDS}.items():
        module = f"-m {module}" if module else ""
        (scripts / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n', encoding="utf-8")
        (scripts / name).chmod(0o755)
    paths = [str(scripts), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    with socket.socket() as free:  # that no other program here has
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    given = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]  # noqa: PTH100
    return {
        **os.environ,
        **ENVIRONMENT,
        "PATH": os.pathsep.join(paths),
        "PYTHONPATH": os.pathsep.join([str(LAPTOP), *given]),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "COLUMNS": str(WIDTH),
        "MASTER_PORT": port,
        "PET_MASTER_PORT": port,  # the default of torchrun
    }


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}..."
