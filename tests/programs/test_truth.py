"""The table of truths is whole, and the comparison with it can fail."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.programs.truth import ASPECTS, KINDS, Ended, judged, lines_of, truths

from finitune.chapter import chapters

HERE = Path(__file__).parent
TRUTHS = truths(HERE)
OURS = {"table", "trial", "truth", *(path.stem for path in HERE.glob("test_*.py"))}
NEEDED = {
    "healthy": {"steps"},
    "untrained": set(),
    "suspect": {"cause"},
    "crash": {"exit", "exception", "cause"},
    "sick": {
        *("why", "step", "symptom", "phase", "op", "cause", "persistent", "discardable", "ends", "finite", "same"),
    },
}
OPTIONAL = {
    "kind",
    "exit",
    "needs",
    "command",
    "why",
    "steps",
    "step",
    "symptom",
    "text",
    "frame",
    "facts",
    "recording",
}
OF_SICK = {"also", "bad", "module", "line", "rank"}


def test_each_program_has_its_truth() -> None:
    assert {path.stem for path in HERE.glob("*.py")} - OURS == set(TRUTHS)


def test_a_third_is_healthy_and_odd() -> None:
    healthy = [name for name, truth in TRUTHS.items() if truth["kind"] == "healthy"]
    assert len(TRUTHS) >= 60
    assert 3 * len(healthy) >= len(TRUTHS)


@pytest.mark.parametrize("name", TRUTHS)
def test_a_truth_is_whole(name: str) -> None:
    truth, program = TRUTHS[name], HERE / f"{name}.py"
    assert truth["kind"] in KINDS
    needed = NEEDED[truth["kind"]]
    assert needed <= set(truth)
    assert set(truth) <= needed | OPTIONAL | (OF_SICK if truth["kind"] == "sick" else set())
    for key in ("line", "frame"):
        fragments = truth.get(key, [])
        assert all(lines_of(program, f) for f in (fragments if isinstance(fragments, list) else [fragments]))
    causes = truth.get("cause", [])
    assert set(causes if isinstance(causes, list) else [causes]) <= {"none", *chapters("causes")}
    assert "finitune" not in program.read_text(encoding="utf-8").lower()
    for fact in truth.get("facts", ()):
        re.compile(fact)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text("import torch\nx = torch.zeros(3)\nloss = torch.log(\n    x\n).sum()\n", encoding="utf-8")
    return path


def run(code: int = 0, out: str = "1 0.5\n2 0.25\n", err: str = "") -> Ended:
    return Ended(code=code, out=out, err=err)


def report(**changed: Any) -> dict[str, Any]:
    incident = {
        "level": "incident", "step": 2, "rank": 0, "symptom": "nonfinite-loss", "causes": [],
        "origin": {"module": "a.b", "op": "aten.log", "phase": "forward", "line": "mine.py:3 in <module>: loss = ..."},
    }  # fmt: skip
    return {"verdict": "incident", "incidents": [incident | changed]}


HEALTHY = {"kind": "healthy", "steps": 2}
SICK = {
    "kind": "sick", "step": 2, "symptom": "nonfinite-loss", "phase": "forward", "op": "log",
    "line": "loss = torch.log(", "module": "b", "cause": "none", "persistent": False, "discardable": True, "ends": 0,
    "finite": True, "same": 1,
}  # fmt: skip
CRASH = {
    "kind": "crash", "exit": 1, "step": 2, "exception": "IndexError", "text": "out of 'range'", "frame": "loss = ",
    "facts": [r"\b300\b"], "cause": "none",
}  # fmt: skip
LAST = "finitune: 2 steps, all finite; recorded in runs/1\n"


def wrong(program: Path, truth: dict[str, Any], watched: Ended, said: dict[str, Any] | None) -> set[str]:
    differs = judged(program, truth, run(truth.get("exit", 0)), watched, said)
    assert set(differs) <= set(ASPECTS)
    return {aspect for aspect, what in differs.items() if what}


def test_stays_quiet_where_all_is_as_it_is_true(program: Path) -> None:
    assert wrong(program, HEALTHY, run(err=LAST), {"verdict": "healthy", "incidents": []}) == set()
    assert wrong(program, HEALTHY, run(), {"verdict": "healthy", "incidents": [], "steps": 2}) == set()
    assert wrong(program, SICK, run(out="1 0.5\nnan\nfinal 3.5\n"), report()) == set()
    assert wrong(program, {"kind": "untrained"}, run(), None) == set()
    crash = report(symptom="crash", text="IndexError: out of 'range'", frames=["mine.py:4 in <module>"], tokens=[300])
    assert wrong(program, CRASH, run(1), crash) == set()
    assert wrong(program, {"kind": "suspect", "cause": "none"}, run(), report(level="suspicion")) == set()


@pytest.mark.parametrize(
    ("changed", "aspect"),
    [
        ({"step": 3}, "step"),
        ({"symptom": "nonfinite-gradient"}, "symptom"),
        ({"origin": None}, "place"),
        ({"causes": [{"cause": "lr-too-high", "strength": "likely"}]}, "cause"),
        ({"level": "suspicion"}, "watched"),
    ],
)
def test_fires_where_the_incident_differs(program: Path, changed: dict[str, Any], aspect: str) -> None:
    assert aspect in wrong(program, SICK, run(), report(**changed))


@pytest.mark.parametrize(
    ("key", "value"), [("phase", "backward"), ("op", "aten.div"), ("module", "c"), ("line", "mine.py:2")]
)
def test_fires_where_the_place_differs(program: Path, key: str, value: str) -> None:
    said = json.loads(json.dumps(report()))
    said["incidents"][0]["origin"][key] = value
    assert wrong(program, SICK, run(), said) == {"place"}


def test_fires_where_the_run_differs(program: Path) -> None:
    calm = {"verdict": "healthy", "incidents": []}
    assert wrong(program, HEALTHY, run(3, err=LAST), calm) == {"exit"}
    assert wrong(program, HEALTHY, run(out="1 0.5\n2 0.26\n", err=LAST), calm) == {"identical"}
    assert wrong(program, HEALTHY, run(err=LAST + "finitune: step 1: odd\n"), calm) == {"silent"}
    assert wrong(program, HEALTHY, run(err=LAST + "UserWarning: a hook\n"), calm) == {"silent"}
    assert wrong(program, HEALTHY, run(err=LAST.replace("2", "3")), calm) == {"watched"}
    assert wrong(program, HEALTHY, run(), calm) == {"watched"}
    assert wrong(program, HEALTHY, run(err=LAST), report(level="suspicion")) == {"watched"}
    assert wrong(program, SICK, run(out="1 0.5\nnan\nfinal nan\n"), report()) == {"weights"}
    assert wrong(program, SICK, run(), {**report(), "incidents": report()["incidents"] * 2}) == {"silent"}
    assert wrong(program, CRASH, run(1), report(symptom="crash")) == {"place"}
    assert wrong(program, {"kind": "suspect", "cause": "none"}, run(), calm) == {"watched"}


def test_a_statement_of_several_lines_is_one_place(program: Path) -> None:
    assert lines_of(program, "loss = ") == range(3, 6)
    with pytest.raises(AssertionError, match="stands in 3 lines"):
        lines_of(program, "torch")
