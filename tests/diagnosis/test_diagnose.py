"""One verb for what a run left behind: its recording, or its logs with what lies beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.reports.examples import record

import finitune
from finitune.cli.main import main
from finitune.finding import UnreadableInput
from finitune.recording import Recorder

LOG = """\
{'loss': 2.31, 'grad_norm': 1.4, 'learning_rate': 2e-05, 'epoch': 0.01}
{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1.9e-05, 'epoch': 0.02}
{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1.8e-05, 'epoch': 0.03}
"""


def test_a_directory_is_a_recording(tmp_path: Path) -> None:
    record(tmp_path)
    assert {incident.source for incident in finitune.diagnose(tmp_path).incidents} == {"recording"}
    with pytest.raises(UnreadableInput, match="holds the facts of its run"):
        finitune.diagnose(tmp_path, gpu="V100")


def test_a_run_killed_before_its_bad_step_was_run_again_does_not_call_it_sound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder(tmp_path)
    recorder.event("incident", step=3, id=1, symptom="nonfinite-loss", text="loss is nan", action="skipped-step")
    recorder.close()
    assert main(["diagnose", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "not located: the recording ends before the step was run again" in said
    assert "sound" not in said


def test_files_are_logs(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "ds.json").write_text(json.dumps({"fp16": {"enabled": True}}))
    (alone,) = finitune.diagnose(tmp_path / "train.log").incidents
    (beside,) = finitune.diagnose(tmp_path / "train.log", configs=[tmp_path / "ds.json"]).incidents
    assert (alone.source, beside.source) == ("log", "log")
    assert beside.causes != alone.causes


@pytest.mark.parametrize("kind", ["missing", "pipe"])
def test_what_is_neither_is_one_line_and_nothing_is_proved(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "train.log")
    with pytest.raises(UnreadableInput, match="expected a recording or a log"):
        finitune.diagnose(tmp_path / "train.log")
    assert main(["diagnose", str(tmp_path / "train.log"), "--prove"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize("level", ["incident", "suspicion"])
def test_the_rank_that_saw_the_operator_is_named(tmp_path: Path, level: str) -> None:
    """The first rank has investigated; another has seen the next step live, operator by operator."""
    statement = {"module": None, "op": "forward", "phase": "forward", "dtype": "float32", "line": "train.py:9: loss"}
    operator = {**statement, "op": "aten.exp", "line": "train.py:3: x.exp()"}
    first, second = Recorder(tmp_path, rank=0, world=2), Recorder(tmp_path, rank=1, world=2)
    first.event("incident", step=3, id=1, level=level, symptom="nonfinite-loss", text="loss is inf")
    first.event("origin", step=3, incident=1, origin=statement, repeats=None)
    second.event("origin", step=3, incident=1, origin=operator, repeats=True, live=4)
    first.close()
    second.close()
    (incident,) = finitune.diagnose(tmp_path).incidents
    assert incident.origin is not None
    found = incident.rank, incident.origin.op
    assert found == ((1, "aten.exp") if level == "incident" else (0, "forward"))


def test_of_several_ranks_the_one_that_died_first_comes_first(tmp_path: Path) -> None:
    """The other ends in an error of its connection, later; it may be in the step before."""
    ranks = [Recorder(tmp_path, rank=rank, world=2) for rank in (0, 1)]
    for rank, text in ((1, "IndexError: index out of range in self"), (0, "RuntimeError: Connection closed by peer")):
        ranks[rank].event("incident", step=10 + rank, id=1, symptom="crash", text=f"the program ended in {text}")
    for recorder in ranks:
        recorder.close()
    assert [incident.rank for incident in finitune.diagnose(tmp_path).incidents] == [1, 0]
