"""A recording can be read whatever happened to the run: cut anywhere, damaged anywhere, continued after."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import finitune
from finitune.facts import Facts, Hardware, Precision
from finitune.finding import UnreadableInput
from finitune.recorded_rows import FORMAT, rows_of
from finitune.recording import Recorder, Recording, new_directory
from finitune.signals import SIGNALS

FACTS = Facts(precision=Precision(compute="float16"), hardware=Hardware(name="V100", bfloat16=False))


def write(directory: Path, steps: range = range(1, 9)) -> None:
    recorder = Recorder(directory)
    recorder.header(FACTS, command=["python", "train.py"])
    for step in steps:
        loss = math.nan if step == 6 else 2.0 / step
        recorder.step(step, loss=loss, grad_norm=math.inf if step == 6 else 1.0, loss_scale=65536.0, lr=None)
        if step == 6:
            recorder.event("incident", step=step, symptom="nonfinite-loss", note="Zahl \u221e")
    recorder.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    write(directory)
    return directory


def copy(whole: Path, to: Path, *, rows: bytes, header: bytes | None = None) -> Path:
    to.mkdir(exist_ok=True)
    (to / "rank00000.jsonl").write_bytes(rows)
    (to / "header.json").write_bytes((whole / "header.json").read_bytes() if header is None else header)
    return to


def everything(recording: Recording) -> tuple:
    """Touch all that a reader may ask for."""
    return (
        recording.facts,
        recording.events(),
        [{k: (v.steps, v.values) for k, v in r.signals.items()} for r in recording.ranks],
        [r.signals_of({"optimizer": name, "step": 3})["loss"].pairs() for r in recording.ranks for name in r.beside],
    )


def test_what_was_written_is_read(whole: Path) -> None:
    recording = Recording.load(whole)
    assert recording.problems == []
    assert recording.header["format"] == FORMAT
    assert recording.header["command"] == ["python", "train.py"]
    assert recording.facts == FACTS
    assert set(recording.signals) == set(SIGNALS)
    assert recording.signals["loss"].steps.tolist() == list(range(1, 9))
    assert math.isnan(recording.signals["loss"].values[5])
    assert recording.signals["grad_norm"].values[5] == math.inf
    assert len(recording.signals["lr"]) == 0
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["rank"], incident["note"]) == (6, 0, "Zahl \u221e")
    assert recording.events("stop") == []


def test_every_line_is_strict_json(whole: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    for line in (whole / "rank00000.jsonl").read_text(encoding="ascii").splitlines():
        json.loads(line, parse_constant=refuse)


def test_cut_at_every_byte(whole: Path, tmp_path: Path) -> None:
    """Rows before the cut are all there, and appending afterwards continues cleanly."""
    rows = (whole / "rank00000.jsonl").read_bytes()
    lines = rows.split(b"\n")
    for cut in range(len(rows) + 1):
        directory = copy(whole, tmp_path / "cut", rows=rows[:cut])
        ends = [i for i in range(1, len(lines)) if len(b"\n".join(lines[:i])) <= cut]
        expected = [row for row in map(json.loads, lines[: len(ends)]) if row["kind"] == "step"]
        recording = Recording.load(directory)
        assert recording.signals["loss"].steps.tolist() == [row["step"] for row in expected], cut
        assert len(recording.problems) <= 1

        recorder = Recorder(directory)
        recorder.step(100, loss=0.5)
        recorder.close()
        again = Recording.load(directory)
        assert again.signals["loss"].steps.tolist() == [*(row["step"] for row in expected), 100], cut
        assert len(again.problems) == len(recording.problems), cut


def test_header_cut_at_every_byte(whole: Path, tmp_path: Path) -> None:
    header = (whole / "header.json").read_bytes()
    rows = (whole / "rank00000.jsonl").read_bytes()
    for cut in range(len(header) + 1):
        recording = Recording.load(copy(whole, tmp_path / "cut", rows=rows, header=header[:cut]))
        assert recording.facts in (Facts(), FACTS)
        assert len(recording.signals["loss"]) == 8
        assert (recording.facts == FACTS) == (not recording.problems)


@given(rows=st.binary(max_size=200), header=st.binary(max_size=100))
def test_random_bytes(whole: Path, tmp_path: Path, rows: bytes, header: bytes) -> None:
    everything(Recording.load(copy(whole, tmp_path / "random", rows=rows, header=header)))


@given(data=st.data())
def test_damaged_bytes(whole: Path, tmp_path: Path, data: st.DataObject) -> None:
    rows = bytearray((whole / "rank00000.jsonl").read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8)):
        rows[at] = data.draw(st.integers(0, 255))
    everything(Recording.load(copy(whole, tmp_path / "damaged", rows=bytes(rows))))


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)
keys = st.sampled_from(["kind", "step", "event", *SIGNALS, "rank", "facts", "format"])
row = st.dictionaries(keys, junk | st.sampled_from(["step", "event", "open", 3]), max_size=6)


@given(rows=st.lists(row | junk, max_size=5), header=row | junk)
def test_rows_that_are_json_but_nonsense(whole: Path, tmp_path: Path, rows: list, header: object) -> None:
    text = "".join(json.dumps(one) + "\n" for one in rows)
    directory = copy(whole, tmp_path / "nonsense", rows=text.encode(), header=json.dumps(header).encode())
    with contextlib.suppress(UnreadableInput):  # a format of the future
        everything(Recording.load(directory))


@pytest.mark.parametrize(
    "bomb", ["[" * 200_000, '{"a":' * 200_000, "9" * 20_000, '{"kind":"step","step":' + "[" * 5000]
)
def test_json_bombs_are_left_out(whole: Path, tmp_path: Path, bomb: str) -> None:
    rows = (whole / "rank00000.jsonl").read_bytes() + bomb.encode() + b'\n{"kind":"step","step":99,"loss":1}\n'
    recording = Recording.load(copy(whole, tmp_path, rows=rows, header=bomb.encode()))
    everything(recording)
    assert recording.signals["loss"].last_step == 99
    assert len(recording.problems) == 2


def test_a_resumed_run_forgets_the_steps_that_never_happened(tmp_path: Path) -> None:
    write(tmp_path)
    recorder = Recorder(tmp_path)
    for step in (4, 5):
        recorder.step(step, loss=1.0)
    recorder.close()
    signals = Recording.load(tmp_path).signals
    assert signals["loss"].steps.tolist() == [1, 2, 3, 4, 5]
    assert signals["loss"].values.tolist()[-2:] == [1.0, 1.0]
    assert signals["grad_norm"].last_step == 4, "what the abandoned steps said is gone for every signal"


def test_two_rows_of_one_step_complete_each_other(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.step(1, loss=1.0)
    recorder.step(1, grad_norm=2.0)
    recorder.close()
    signals = Recording.load(tmp_path).signals
    assert (signals["loss"].last, signals["grad_norm"].last) == (1.0, 2.0)


def test_what_an_optimizer_has_of_its_own_that_stepped_beside_another(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for step in (1, 2, 3, 2):  # resumed at step 2
        recorder.step(step, loss=1.0, lr=1e-3, loss_scale=8.0)
        recorder.beside(step, optimizer="SGD (optimizer 2)", loss=100.0 * step, lr=0.1)
    recorder.beside(2, optimizer="SGD (optimizer 3)", update_ratio=0.5)
    recorder.close()
    (rank,) = Recording.load(tmp_path).ranks
    own = rank.signals_of({"optimizer": "SGD (optimizer 2)", "step": 2})
    assert own["loss"].pairs() == [(1, 100.0), (2, 200.0)]
    assert (own["lr"].last, own["loss_scale"].last) == (0.1, 8.0)
    for name, step in (("SGD (optimizer 2)", 3), ("SGD (optimizer 3)", 2), ("Adam", 2), (None, 2)):
        assert rank.signals_of({"optimizer": name, "step": step}) is rank.signals


def test_ranks_are_kept_apart(tmp_path: Path) -> None:
    for rank in (1, 0):
        recorder = Recorder(tmp_path, rank=rank, world=2)
        recorder.header(FACTS)
        recorder.step(1, loss=float(rank))
        recorder.event("incident", step=1)
        recorder.close()
    recording = Recording.load(tmp_path)
    assert [one.rank for one in recording.ranks] == [0, 1]
    assert recording.signals["loss"].last == 0.0
    assert [event["rank"] for event in recording.events()] == [0, 1]


def test_no_recording_is_said_so(tmp_path: Path) -> None:
    for directory, why in ((tmp_path, "no recording here"), (tmp_path / "absent", "no such file or directory")):
        with pytest.raises(FileNotFoundError, match=why):
            Recording.load(directory)


def test_values_of_every_kind_are_kept(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.step(1, loss=np.float32(0.5), grad_norm=np.float64("-inf"))  # type: ignore[arg-type]
    recorder.close()
    signals = Recording.load(tmp_path).signals
    assert (signals["loss"].last, signals["grad_norm"].last) == (0.5, -math.inf)


def test_a_closed_recorder_writes_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    recorder = Recorder(tmp_path)
    recorder.close()
    recorder.close()
    recorder.step(50, loss=1.0)
    recorder.event("end", step=50)
    assert Recording.load(tmp_path).signals["loss"].last_step == 8


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_does_not_stop_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank00000.jsonl").symlink_to("/dev/full")
    recorder = Recorder(tmp_path)
    recorder.step(1, loss=1.0)
    recorder.event("end", step=1)
    recorder.close()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "No space left on device; training goes on" in said


CRAMPED = """
import resource, signal, sys
from finitune.recording import Recorder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recorder = Recorder(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for step in range(100):
    recorder.step(step, loss=1.0)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for step in range(100, 110):
    recorder.step(step, loss=1.0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_space_that_comes_back_is_used_again(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", CRAMPED, str(tmp_path)], check=True, stderr=subprocess.DEVNULL)
    recording = Recording.load(tmp_path)
    steps = recording.signals["loss"].steps.tolist()
    assert steps[-10:] == list(range(100, 110))
    assert 5 < len(steps) < 100
    assert len(recording.problems) == 3, "no header, one torn line, and the gap"
    assert f"{110 - len(steps)} rows could not be written" in recording.problems[-1]


def test_a_run_that_writes_as_fast_as_it_is_read_is_read_to_where_it_was(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for step in range(3):
        recorder.step(step, loss=1.0)
    lines = len(recorder.path.read_bytes().splitlines())
    read = 0
    for read, _ in enumerate(rows_of(recorder.path, []), start=1):
        recorder.step(3 + read, loss=1.0)
        assert read <= lines
    assert read == lines


ENDLESS = """
import sys
from finitune.recording import Recorder
recorder = Recorder(sys.argv[1])
for step in range(10**9):
    recorder.step(step, loss=1.0)
    if step == 200:
        print("go", flush=True)
"""


def test_kill_loses_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as out:
        assert out.readline() == b"go\n"
        assert len(Recording.load(tmp_path).signals["loss"]) >= 201, "readable while the run goes on"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    steps = Recording.load(tmp_path).signals["loss"].steps
    assert np.array_equal(steps, np.arange(len(steps)))


def test_two_runs_of_one_second_have_a_directory_each(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda _: "20260101-000000")
    made = [str(new_directory("demo-")) for _ in range(3)]
    assert made == [f"runs/demo-20260101-000000{more}" for more in ("", "-2", "-3")]


def test_a_recording_shows_itself(tmp_path):
    write(tmp_path)
    recording = finitune.Recording.load(tmp_path)
    assert str(recording).splitlines() == [
        f"{tmp_path}: 8 steps of 1 rank", "  signals  loss, grad_norm, loss_scale", "  events   incident (1)",
    ]  # fmt: skip
    assert "8 steps of 1 rank" in recording._repr_html_()
    (tmp_path / "header.json").write_text("{")
    assert "  problem  " in str(Recording.load(tmp_path))


def test_what_verbs_return_and_raise_is_public():
    names = {"CheckResult", "Diagnosis", "Incident", "Finding", "RepairResult", "Recording", "InputError"}
    assert names <= set(finitune.__all__) <= set(dir(finitune))
    assert all(getattr(finitune, name).__name__ in (name, "UnreadableInput") for name in names)
