"""`python -m finitune.demo.systems [NAME...] [--jobs N]` tells every example in an environment that has what it needs.

One table at the end. An environment is this one, or a `.venv-*` beside the examples. An example for which there is none
is left out, named. Of several that are told at a time each is printed when it has ended.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from finitune.demo import story
from finitune.demo.stage import mark
from finitune.finding import UnreadableInput
from finitune.recording import new_directory

MEETS = """
import sys
from pathlib import Path
from finitune.demo import story
print(*story.missing(story.read(Path(sys.argv[1]))), sep=", ")
"""
TELL = """
import sys
from pathlib import Path
from rich.console import Console
from finitune.demo import story, tell
tell.tell(story.read(Path(sys.argv[1])), Path(sys.argv[2]), Console(highlight=False))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One example: `code` is None where no environment has what it needs, `lacking`."""

    name: str
    steps: list[dict[str, Any]]
    code: int | None
    lacking: str = ""


def main(names: Sequence[str], jobs: int = 1) -> int:
    """Tell the stories called `names`, all of them without, `jobs` at a time; 0 when every step went as told."""
    examples = story.stories()
    unknown = [name for name in names if name not in examples]
    if unknown:
        raise UnreadableInput(f"no example is called {', '.join(unknown)}; there are {', '.join(examples)}")
    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("system", "step", "", "what was seen", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left", overflow="fold")
    missed: list[str] = []
    with ThreadPoolExecutor(jobs) as pool:
        every = pool.map(partial(_tell, examples, at_once=jobs > 1), names or examples)
        for told in every:
            _add(table, told, examples[told.name])
            if told.code is None:
                missed += [f"{told.name}: not told, it needs {told.lacking}"] if names else []
            missed += [
                f"{told.name}, {one['name']}: {'; '.join(one['wrong'])}" for one in told.steps if not one["as_told"]
            ]
            missed += [f"{told.name}: the story broke off (exit code {told.code})"] if told.code else []
    console.print(table)
    for line in missed:
        console.print(Text(f"not as told: {line}"), soft_wrap=True)
    return 1 if missed else 0


def _tell(examples: dict[str, Path], name: str, *, at_once: bool) -> Told:
    python, lacking = environment(examples[name])
    if python is None:
        return Told(name=name, steps=[], code=None, lacking=lacking)
    directory = new_directory(f"demo-{name}-")
    command = [python, "-c", TELL, str(examples[name]), str(directory)]
    output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if at_once else {}
    done = subprocess.run(command, text=True, check=False, **output)
    print(done.stdout or "", flush=True)
    return Told(name=name, steps=_steps(directory), code=done.returncode)


def _add(table: Table, told: Told, example: Path) -> None:
    """Its rows of the table."""
    if told.code is None:
        install = story.read(example).install
        table.add_row(told.name, "", Text("not told", style="yellow"), Text(f"needs {told.lacking}: {install}"), "")
    shown = told.name
    for step in told.steps:
        seen = "; ".join(step["wrong"] or step["lines"])
        table.add_row(shown, step["name"], mark(sound=step["as_told"]), Text(seen), f"{step['seconds']:.0f}")
        shown = ""
    if told.code:
        table.add_row(shown, "", mark(sound=False), Text(f"broke off (exit code {told.code})"), "")


def environment(example: Path) -> tuple[str | None, str]:
    """The first Python that has what the example needs; else None, and what the first one lacks."""
    others = sorted(example.parents[1].glob(".venv-*/bin/python"))
    lacks: list[str] = []
    for python in [sys.executable, *map(str, others)]:
        asked = subprocess.run([python, "-c", MEETS, str(example)], capture_output=True, text=True, check=False)
        if asked.returncode == 0 and not asked.stdout.strip():
            return python, ""
        lacks.append(asked.stdout.strip() or asked.stderr.strip().rpartition("\n")[2])
    return None, lacks[0]


def _steps(directory: Path) -> list[dict[str, Any]]:
    file = directory / "story.json"
    return json.loads(file.read_text(encoding="utf-8"))["steps"] if file.exists() else []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="finitune.demo.systems")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    try:
        sys.exit(main(given.names, given.jobs))
    except UnreadableInput as error:
        sys.exit(f"finitune: {error}")
