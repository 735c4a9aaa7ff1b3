"""Yi-6B, 01-ai/Yi#285: a chat fine-tune in float16 dies because its first token was never trained. Broken, then cured.

Six steps, each a command that can be typed again in the directory that the story leaves behind.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from finitune.demo.stage import Outcome, Stage, Step, show, summary
from finitune.demo.yi.commands import finitune, make_base, train
from finitune.finding import UnreadableInput
from finitune.recording import new_directory

NEEDED = ("torch", "transformers", "tokenizers")
CONFIGS = ("training_args.json", "deepspeed.json")
FILES = ("finetune.py", *CONFIGS)
CHECK = ("check", *CONFIGS, "--data", "chat.jsonl", "--gpu", "V100")
LAST_WORDS = "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
CAUSE = "untrained-token-embeddings"
REMEDY = "reinit-token-rows"
PREFIX = "<|endoftext|>"


def main() -> int:
    """Tell the story in `runs/demo-yi-<time>`; 0 when every step went as told."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UnreadableInput(f"finitune demo needs {', '.join(missing)}: pip install 'finitune[hf]'")
    directory = new_directory("demo-yi-")
    stage = tell(directory, Console(highlight=False))
    return 0 if all(step.sound for step in stage.steps) else 1


def tell(directory: Path, console: Console, **recipe: int) -> Stage:
    """All six steps, the table and the page; `recipe` changes the base model (see `base.Recipe`)."""
    stage = Stage(directory=directory.resolve(), console=console)
    began = time.monotonic()
    console.print(Text("Yi-6B, 01-ai/Yi#285, made small: a chat fine-tune in float16", style="bold"))
    prepare(stage, recipe)
    for number, step in enumerate((unguarded, foreseen, guarded, repaired, controls, healed), start=1):
        console.print()
        console.print(Text(f"{number}  {step.__doc__}", style="bold"), soft_wrap=True)
        stage.steps.append(step(stage))
    console.print()
    console.print(summary(stage.steps))
    page = write_page(stage)
    console.print()
    console.print(Text(f"{time.monotonic() - began:.0f} s; everything lies in {stage.directory}"), soft_wrap=True)
    where = page or "needs jinja2 and matplotlib: pip install 'finitune[report]'"
    console.print(Text(f"report  {where}"), soft_wrap=True)
    return stage


def prepare(stage: Stage, recipe: dict[str, int]) -> None:
    """The user's directory: base model, chat data, script and configs."""
    made = make_base(recipe, stage.console)
    stage.directory.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(Path(__file__).with_name(name), stage.directory / name)
    (stage.directory / "base").mkdir()
    for path in made.iterdir():
        target = (
            stage.directory if path.name.startswith("chat") and path.suffix == ".jsonl" else stage.directory / "base"
        )
        shutil.copyfile(path, target / path.name)


def unguarded(stage: Stage) -> Step:
    """Unguarded: the loss scale falls to its minimum and the run ends."""
    run = train(stage.directory, stage.console, model="base")
    overflows = [line for line in run.output.splitlines() if "OVERFLOW!" in line]
    died = run.code != 0 and bool(overflows) and run.output.rstrip().endswith(LAST_WORDS)
    show(stage, run, lines=[*overflows[:2], "...", *overflows[-2:], *run.output.splitlines()[-1:]])
    result = "it did not die"
    if died:
        first, last = run.steps[0]["loss_scale"], overflows[-1].rpartition(" ")[2]
        result = f"scale {first:.0f} -> {last}, then at step {len(run.steps) + 1}: {LAST_WORDS}"
    return Step(title="unguarded", result=result, sound=died, outcomes=[run])


def foreseen(stage: Stage) -> Step:
    """Foreseen: `finitune check` reads model, configs and data before anything is trained."""
    shown = show(stage, finitune(stage.directory, *CHECK, "--model", "base", width=stage.console.width - 2))
    errors = [f for f in findings(stage, "base") if f["cause"] == CAUSE and f["severity"] == "error"]
    if not errors:
        return Step(title="check", result="it saw nothing", sound=False, outcomes=[shown])
    evidence, tokens = errors[0]["evidence"], errors[0]["where"]["tokens"]
    result = (
        f"token {', '.join(map(str, tokens))} begins {evidence['first_positions']} sequences; its row has rms "
        f"{evidence['row_rms']:.1e}, the median row {evidence['median_rms']:.1e}"
    )
    return Step(title="check", result=result, sound=shown.code == 1, outcomes=[shown])


def guarded(stage: Stage) -> Step:
    """Guarded: the same command under `finitune run`, which stops it and proves why."""
    run = show(stage, train(stage.directory, stage.console, model="base", record="guarded"))
    answer = said(finitune(stage.directory, "diagnose", "guarded", "--format", "json"))
    if not answer["incidents"]:
        return Step(title="guarded", result="it saw nothing", sound=False, outcomes=[run])
    incident = answer["incidents"][0]
    causes, origin = incident["causes"], incident["origin"]
    proved = bool(causes) and causes[0]["cause"] == CAUSE and causes[0]["proved"]
    where = f"{origin['module']}, {origin['op']} ({origin['phase']})" if origin else "not located"
    why = f"{CAUSE}, proved" if proved else "cause not proved"
    sound = run.code == 3 and origin is not None and proved
    result = f"step {incident['step']}: {where}; {why}; exit code {run.code}"
    return Step(title="guarded", result=result, sound=sound, outcomes=[run])


def repaired(stage: Stage) -> Step:
    """Repaired: the rows are drawn again, and the same fine-tune finishes."""
    configs = [word for name in CONFIGS for word in ("--config", name)]
    inputs = ("--model", "base", "--data", "chat.jsonl", *configs, "--output", "repaired")
    cure = finitune(stage.directory, "repair", REMEDY, *inputs, "--format", "json")
    table = changes(cure)
    show(stage, cure, lines=[])
    stage.console.print(grid(table))
    run = show(stage, train(stage.directory, stage.console, model="repaired", record="finished"))
    before = stage.steps[0].outcomes[0].evaluations[:1]
    after = run.evaluations[1:]
    sound = run.code == 0 and bool(before and after) and after[0] < before[0]
    result = (
        f"{len(run.steps)} steps, evaluation loss {before[0]:.2f} (base) -> {after[0]:.2f}" if sound else "it failed"
    )
    return Step(title="repaired", result=result, sound=sound, outcomes=[cure, run], table=table)


def controls(stage: Stage) -> Step:
    """Controls: the same rows one position later train, and the healthy model raises nothing."""
    later = train(stage.directory, stage.console, model="base", record="later", prefix=PREFIX)
    show(stage, later, lines=[])
    silent = [show(stage, finitune(stage.directory, "diagnose", name)) for name in ("later", "finished")]
    quiet = finitune(stage.directory, *CHECK, "--model", "repaired", "--format", "json")
    before, after = [*later.evaluations, 0.0, 0.0][:2]
    sound = later.code == 0 and after < before and all(o.code == 0 for o in (*silent, quiet))
    result = (
        f"behind {PREFIX}: {len(later.steps)} steps, evaluation loss {before:.2f} -> {after:.2f}; "
        f"incidents in both sound runs: {'none' if all(o.code == 0 for o in silent) else 'some'}; "
        f"check of the repaired model: {said(quiet)['verdict']}"
    )
    return Step(title="controls", result=result, sound=sound, outcomes=[later, *silent])


def healed(stage: Stage) -> Step:
    """Healed: the run that died, unchanged, cured while it runs; once it was stopped, now it finishes."""
    run = show(stage, train(stage.directory, stage.console, model="base", record="healed", mode="heal"))
    answer = said(finitune(stage.directory, "diagnose", "healed", "--format", "json"))
    actions = [incident["action"] for incident in answer["incidents"]]
    stopped, wanted = stage.steps[2].outcomes[0], stage.steps[3].outcomes[1].evaluations[1:]
    before, after = [*run.evaluations, 0.0, 0.0][:2]
    sound = run.code == 0 and stopped.code != 0 and "healed" in actions and 0 < after < before and bool(wanted)
    result = (
        f"stopped at step {len(stopped.steps) + 1} under guard; healed: {len(run.steps)} steps, evaluation loss "
        f"{before:.2f} -> {after:.2f} (with the repaired model {wanted[0]:.2f})"
        if sound
        else "it was not healed"
    )
    return Step(title="healed", result=result, sound=sound, outcomes=[run])


def findings(stage: Stage, model: str) -> list[dict[str, Any]]:
    answer = finitune(stage.directory, *CHECK, "--model", model, "--format", "json")
    return said(answer)["findings"]


def said(answer: Outcome) -> dict[str, Any]:
    """The JSON that a verb printed; anything else ends the story."""
    try:
        return json.loads(answer.output)
    except ValueError:
        last = (answer.output.strip().splitlines() or ["nothing"])[-1]
        raise UnreadableInput(f"{answer.command} said: {last} (expected JSON)") from None


def changes(cure: Outcome) -> list[list[str]]:
    """The rows before and after, as `finitune repair --format json` tells them."""
    rows = said(cure)["changes"]
    head = ["tensor", "row", "norm before", "norm after"]
    return [head] + [[r["tensor"], str(r["row"]), f"{r['norm_before']:.1e}", f"{r['norm_after']:.1e}"] for r in rows]


def grid(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*rows[0], box=None, padding=(0, 2, 0, 2), header_style="dim")
    for row in rows[1:]:
        table.add_row(*row)
    return table


def write_page(stage: Stage) -> Path | None:
    """`report.html` beside the runs; None when the packages for it are not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("jinja2", "matplotlib")):
        return None
    from finitune.demo.yi.page import render

    page = stage.directory / "report.html"
    page.write_text(render(stage), encoding="utf-8")
    finitune(stage.directory, "report", "guarded")
    return page
