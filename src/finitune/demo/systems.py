"""`python -m finitune.demo.systems [NAME...]` runs the story of every example where its needs are met: one table.

An environment is this one, or a `.venv-*` beside the examples. An example for which there is none is left out, named.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
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
RUN = """
import sys
from pathlib import Path
from rich.console import Console
from finitune.demo import runner, story
runner.run_story(story.read(Path(sys.argv[1])), Path(sys.argv[2]), Console(highlight=False))
"""


def main(names: Sequence[str]) -> int:
    """Run the stories called `names`, all of them without; 0 when every step of each passed."""
    console = Console(highlight=False)
    examples = story.stories()
    unknown = [name for name in names if name not in examples]
    if unknown:
        raise UnreadableInput(f"no example is called {', '.join(unknown)}; there are {', '.join(examples)}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("system", "step", "", "what was seen", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left", overflow="fold")
    missed: list[str] = []
    for name in names or examples:
        python, lacking = environment(examples[name])
        if python is None:
            install = story.read(examples[name]).install
            table.add_row(name, "", Text("not run", style="yellow"), Text(f"needs {lacking}: {install}"), "")
            missed += [f"{name}: not run, it needs {lacking}"] if names else []
            continue
        directory = new_directory(f"demo-{name}-")
        done = subprocess.run([python, "-c", RUN, str(examples[name]), str(directory)], check=False)
        steps = _steps(directory)
        missed += [f"{name}, {step['name']}: {'; '.join(step['wrong'])}" for step in steps if not step["passed"]]
        shown = name
        for step in steps:
            seen = "; ".join(step["wrong"] or step["lines"])
            table.add_row(shown, step["name"], mark(passed=step["passed"]), Text(seen), f"{step['seconds']:.0f}")
            shown = ""
        if done.returncode:
            missed.append(f"{name}: the story broke off (exit code {done.returncode})")
            table.add_row(shown, "", mark(passed=False), Text(f"broke off (exit code {done.returncode})"), "")
        console.print()
    console.print(table)
    for line in missed:
        console.print(Text(f"failed: {line}"), soft_wrap=True)
    return 1 if missed else 0


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
    try:
        sys.exit(main(sys.argv[1:]))
    except UnreadableInput as error:
        sys.exit(f"finitune: {error}")
