"""The terminal: golden text at 80 columns, and nothing that steers the terminal."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest
from rich.console import Console
from tests.reports.examples import CHECKED, DIAGNOSIS, INCIDENT, OVERFLOW, UNTRAINED

from finitune.finding import CheckResult, Diagnosis, Finding, Remedy, Where
from finitune.repairs.result import Change, RepairResult
from finitune.reports import sentences as say
from finitune.reports import terminal

CHECK = """\
broken: 1 error, 1 warning, 1 info

error
  models/yi, model.embed_tokens.weight, tokens 6-7: 2 tokens that begin 512 of
    512 sequences were never trained: rms 1e-08, median row 0.021
    cause  untrained-token-embeddings
    do     finitune repair reinit-token-rows --model models/yi --tokens 6,7 --output models/yi-repaired
           (reinit-token-rows, safe)

warning
  ds_config.json, fp16.enabled: the weights are bfloat16 and float16 is asked
    for
    cause  fp16-activation-overflow
    do     set bf16.enabled = true   (use-bfloat16, unsafe)

info
  all-labels-ignored: 3 rows of 900 have no target

passed       corrupt-checkpoint, lr-too-high
not checked  hardware (no --gpu given); data (no --data given)
more         finitune causes NAME and finitune remedies NAME explain more
"""

BLOCK = """\
step 31: gradients are not finite (2 of 291 tensors). Update discarded; weights
are those of step 30.
  first bad value  model.layers.7.mlp, aten.mul (forward), float16: inf in rows
                   2, 5 at padding positions 0-3
  repeats          yes
  cause            fp16-activation-overflow, proved: finite with
                   model.layers.7.mlp in float32, not with model.layers.6.mlp in
                   float32
  do               finitune check runs/0815 --gpu x
                   (keep-modules-float32, safe)
  or do            set bf16.enabled = true, fp16.enabled = false
                   (use-bfloat16, unsafe)
  more             finitune report runs/0815
"""

NOT_CHECKED = """
not checked  data (the recording names no file)
"""

TERMS = """
  fp16-activation-overflow, proved: +9.4 bits
      -3.0  occurs in 31 of 250 public incidents that the book knows
      +8.0  experiment module-float32=model.layers.7.mlp: finite, as predicted
      +3.1  the origin is a forward operator in float16
      +1.6  placebo module-float32=model.layers.6.mlp: non-finite, as predicted
      -0.3  the learning rate had just changed

  untrained-token-embeddings, a guess: -4.2 bits
      -4.2  replacing the rows did not make the step sound
            not asked: tokens
"""


def plain(width: int = 80, **options: object) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False, **options)  # pyright: ignore[reportArgumentType]


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_check() -> None:
    console = plain()
    terminal.print_check(CHECKED, console)
    assert text_of(console) == CHECK


def test_check_with_nothing_found() -> None:
    console = plain()
    terminal.print_check(CheckResult(findings=[], not_checked=[], passed=["lr-too-high"]), console)
    assert text_of(console) == "ok: nothing found\n\npassed  lr-too-high\n"


def test_many_passed_causes_are_counted() -> None:
    console = plain()
    passed = [f"cause-{i}" for i in range(29)]
    terminal.print_check(CheckResult(findings=[], not_checked=[], passed=passed), console)
    assert text_of(console) == "ok: nothing found\n\npassed  29 causes (named by --format json)\n"


def test_diagnosis() -> None:
    console = plain()
    terminal.print_diagnosis(DIAGNOSIS, console, run_dir="runs/0815")
    assert text_of(console) == BLOCK + NOT_CHECKED


def test_diagnosis_with_every_term() -> None:
    console = plain()
    terminal.print_diagnosis(DIAGNOSIS, console, run_dir="runs/0815", verbose=True)
    assert text_of(console) == BLOCK + TERMS + NOT_CHECKED


def test_healthy() -> None:
    console = plain()
    terminal.print_diagnosis(Diagnosis(incidents=[]), console, run_dir="runs/0815")
    assert text_of(console) == "healthy: no incident\n"


def test_unproved_unknown_and_unlocated_are_said() -> None:
    unsure = dataclasses.replace(OVERFLOW, proved=False, strength="guess", proof=())
    incident = dataclasses.replace(INCIDENT, causes=[unsure, UNTRAINED], origin=None, reproducible=None, rank=2)
    text = "\n".join(terminal.incident_lines(incident))
    assert text.startswith("step 31, rank 2: ")
    assert "a guess (97% sure)" in text
    assert "or               untrained-token-embeddings" in text
    assert "not located" in text
    assert "not tried" in text
    nothing = "\n".join(terminal.incident_lines(dataclasses.replace(INCIDENT, causes=[])))
    assert "unknown: no chapter" in nothing


def test_many_incidents_stay_on_one_screen() -> None:
    many = Diagnosis(incidents=[dataclasses.replace(INCIDENT, step=step) for step in range(31, 91)])
    console = plain()
    terminal.print_diagnosis(many, console, run_dir="runs/0815")
    assert text_of(console).count("first bad value") == terminal.INCIDENTS_SHOWN
    assert "57 further incidents, step 34 and later: --verbose" in text_of(console)
    assert text_of(console).count("finitune report") == 1


def test_only_severity_has_colour() -> None:
    console = plain(force_terminal=True, color_system="standard")
    terminal.print_check(CHECKED, console)
    coloured = re.findall(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m", text_of(console))
    assert coloured == ["broken", "error", "warning", "info"]


def test_no_box_drawing_and_ascii_when_piped() -> None:
    console = plain()
    terminal.print_check(CHECKED, console)
    terminal.print_diagnosis(DIAGNOSIS, console, verbose=True)
    assert text_of(console).isascii()
    assert "\x1b" not in text_of(console)


def test_names_cannot_steer_the_terminal() -> None:
    hostile = "a\x1b]0;owned\x07\x1b[2J[bold red]b[/]\ud800"
    finding = Finding(
        cause="x", severity="error", message=hostile, where=Where(module=hostile),
        remedy=Remedy(name="r", safety="advice", command=hostile),
    )  # fmt: skip
    console = plain()
    terminal.print_check(CheckResult(findings=[finding], not_checked=[]), console)
    terminal.print_diagnosis(Diagnosis(incidents=[dataclasses.replace(INCIDENT, message=hostile)]), console)
    out = text_of(console)
    assert "\x1b" not in out
    assert "\x07" not in out
    assert r"a\x1b]0;owned\x07\x1b[2J[bold red]b[/]\ud800" in out
    out.encode()


def test_commands_are_never_broken() -> None:
    command = "finitune repair " + " ".join(f"--flag-{i} value" for i in range(40))
    finding = Finding(cause="x", severity="error", message="m", remedy=Remedy(name="r", safety="safe", command=command))
    console = plain(width=40)
    terminal.print_check(CheckResult(findings=[finding], not_checked=[]), console)
    assert f"    do  {command}" in text_of(console).splitlines()


def test_repair() -> None:
    console = plain()
    changes = [Change(file="model.safetensors", row=6, tensor="embed", norm_before=1e-8, norm_after=0.9)]
    changes += [Change(file="data.jsonl", row=row) for row in range(30)]
    result = RepairResult(repair="reinit-token-rows", output="models/out", changes=changes, seed=0)
    terminal.print_repair(result, console)
    lines = text_of(console).splitlines()
    assert lines[:6] == [
        "repair   reinit-token-rows",
        "output   models/out",
        "seed     0",
        "changes  31",
        "  file model.safetensors, row 6, tensor embed, norm before 1e-8, norm after 0.9",
        "  file data.jsonl, row 0",
    ]
    assert lines[-1] == "  and 11 more: --format json"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""), ([3], "3"), ([0, 1, 2, 7], "0-2, 7"), ([2, 1, 1], "1-2"),
        (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14, ... (20 in all)"),
    ],
)  # fmt: skip
def test_ranges(numbers: list[int], text: str) -> None:
    assert say.ranges(numbers) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(65504.0, "65504"), (0.0003, "0.0003"), (1.2e8, "1.2e+08"), (float("nan"), "nan"), (float("-inf"), "-inf")],
)
def test_figure(value: float, text: str) -> None:
    assert say.figure(value) == text
