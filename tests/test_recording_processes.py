"""Two processes in one run directory, and a training that forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from finitune.recording import Recorder, Recording

OTHER = """
import sys
from finitune.recording import Recorder
recorder = Recorder(sys.argv[1])
recorder.step(1, loss=7.0)
print(recorder.directory)
recorder.close()
"""


def other_process(directory: Path) -> tuple[Path, str]:
    done = subprocess.run(
        [sys.executable, "-c", OTHER, str(directory)], capture_output=True, text=True, check=True, timeout=240
    )
    return Path(done.stdout.strip()), done.stderr


def test_a_second_process_records_in_a_directory_of_its_own_and_says_so(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    recorder.step(1, loss=1.0)
    place, said = other_process(tmp_path / "run")
    recorder.step(2, loss=2.0)
    recorder.close()
    assert place.parent == tmp_path / "run"
    assert "another process records here" in said
    assert Recording.load(tmp_path / "run").signals["loss"].values.tolist() == [1.0, 2.0]
    assert Recording.load(place).signals["loss"].values.tolist() == [7.0]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_processes_of_one_command_are_not_worth_a_word(tmp_path: Path, same: bool, ended: bool, monkeypatch) -> None:
    monkeypatch.setenv("FINITUNE_MARKS", "/marks/finitune-1")
    recorder = Recorder(tmp_path / "run")
    recorder.step(1, loss=1.0, skipped=0.0)
    if ended:
        recorder.close()
    monkeypatch.setenv("FINITUNE_MARKS", "/marks/finitune-1" if same else "/marks/finitune-2")
    place, said = other_process(tmp_path / "run")
    recorder.close()
    assert place != tmp_path / "run"
    assert ("records here" in said or "is recorded here" in said) is not same


def test_a_process_that_looked_while_the_other_began_records_elsewhere(tmp_path: Path) -> None:
    first, second = Recorder(tmp_path / "run"), Recorder(tmp_path / "run")
    assert second.earlier_incidents == 0
    first.step(1, loss=1.0, skipped=0.0)
    first.close()
    second.step(1, loss=7.0, skipped=0.0)
    second.close()
    assert Recording.load(tmp_path / "run").signals["loss"].values.tolist() == [1.0]


def test_a_process_that_comes_later_continues_the_recording(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    recorder.close()
    place, said = other_process(tmp_path / "run")
    assert (place, said) == (tmp_path / "run", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_writes_nothing_into_the_recording_of_its_parent(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    recorder.step(1, loss=1.0)
    child = os.fork()
    if child == 0:
        recorder.step(1, loss=9.0)
        os._exit(0)
    os.waitpid(child, 0)
    recorder.step(2, loss=2.0)
    recorder.close()
    assert Recording.load(tmp_path / "run").signals["loss"].values.tolist() == [1.0, 2.0]
