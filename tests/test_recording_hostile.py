"""A recording from a stranger: nothing outside of its directory is read or written, and it fills no memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from finitune.cli.main import main
from finitune.diagnosis.recorded import diagnose
from finitune.finding import UnreadableInput
from finitune.recorded_rows import FORMAT
from finitune.recording import Recorder, Recording, continued

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs links and pipes")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    recorder = Recorder(directory)
    recorder.header({}, command=["train.py"], world=1)
    for step in range(1, 9):
        recorder.step(step, loss=2.0 / step)
    recorder.event("incident", step=6, id=1, symptom="nonfinite-loss", text="the loss is not finite", action="none")
    recorder.close()
    return directory


def append(run_dir: Path, *rows: object) -> None:
    with (run_dir / "rank00000.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def in_a_process(*words: object, limit: int = 2**30, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    """A command of finitune whose address space is limited to what it takes without input, and `limit` more."""
    script = (
        "import resource, sys\n"
        "from finitune.cli.main import main\n"
        "import numpy, finitune.diagnosis.diagnose, finitune.reports.terminal, finitune.show\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (size + {limit},) * 2)\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, words)], capture_output=True, text=True, timeout=seconds, check=False
    )


@posix
@pytest.mark.parametrize("name", ["header.json", "rank00001.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "zero", "outside", "loop"])
def test_what_is_no_file_of_the_recording_is_left_out(run_dir: Path, tmp_path: Path, name: str, kind: str) -> None:
    (run_dir / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(run_dir / name)
    else:
        (tmp_path / "secret").write_text('{"facts": {}, "command": ["secret"]}\n')
        target = {"zero": "/dev/zero", "outside": tmp_path / "secret", "loop": run_dir / name}[kind]
        (run_dir / name).symlink_to(target)
    done = in_a_process("diagnose", run_dir)
    assert done.returncode == 1, done.stderr
    (problem,) = Recording.load(run_dir).problems
    assert name in problem
    assert "secret" not in str(Recording.load(run_dir).header)


@pytest.mark.slow
@posix
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads how large a process is")
@pytest.mark.parametrize("kind", ["sparse", "lists", "header", "events"])
def test_the_memory_stays_small(run_dir: Path, kind: str) -> None:
    if kind == "sparse":
        os.truncate(run_dir / "rank00000.jsonl", 2**40)
    elif kind == "lists":
        append(run_dir, {"kind": "event", "event": "note", "step": 8, "x": [[]] * 3 * 10**6})
    elif kind == "header":
        (run_dir / "header.json").write_text(json.dumps({"facts": {"x": [[]] * 4 * 10**6}}))
    else:
        append(run_dir, *[{"kind": "event", "event": "note", "step": 8, "x": [[]] * 5 * 10**5}] * 20)
    done = in_a_process("diagnose", run_dir)
    assert (done.returncode, done.stderr) == (1, "")
    assert Recording.load(run_dir).problems


@posix
@pytest.mark.parametrize("name", ["rank00000.jsonl", ".rank00000.lock"])
@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_added_through_a_link(run_dir: Path, tmp_path: Path, name: str, there: bool) -> None:
    victim = tmp_path / "victim"
    if there:
        victim.write_text("mine\n")
    (run_dir / name).unlink(missing_ok=True)
    (run_dir / name).symlink_to(victim)
    with pytest.raises(UnreadableInput, match="leads"):
        continued(run_dir, rank=0, world=1)
    assert (victim.read_text() if victim.exists() else None) == ("mine\n" if there else None)


@posix
def test_a_pipe_in_place_of_the_lock_does_not_wait(run_dir: Path) -> None:
    (run_dir / ".rank00000.lock").unlink(missing_ok=True)
    os.mkfifo(run_dir / ".rank00000.lock")
    with pytest.raises(UnreadableInput, match="a pipe or a device"):
        continued(run_dir, rank=0, world=1)


@pytest.mark.parametrize("name", ["rankA-rank00000.jsonl", "rank0000\u0661.jsonl", "rank00000.jsonl.jsonl"])
def test_only_the_names_that_are_written_are_read(run_dir: Path, name: str) -> None:
    (run_dir / "rank00000.jsonl").rename(run_dir / name)
    with pytest.raises(FileNotFoundError, match="no recording here"):
        Recording.load(run_dir)


@posix
def test_the_report_replaces_a_link_and_not_what_it_leads_to(run_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    victim = tmp_path / "bashrc"
    victim.write_text("mine\n")
    (run_dir / "report.html").symlink_to(victim)
    assert main(["report", str(run_dir)]) == 0
    assert victim.read_text() == "mine\n"
    assert (run_dir / "report.html").read_text().startswith("<!doctype html>")
    assert not (run_dir / "report.html").is_symlink()
    assert not list(run_dir.glob(".*.tmp"))


def test_a_report_shows_no_secret_of_an_older_recording(run_dir: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    header = json.loads((run_dir / "header.json").read_text())
    header["command"] = ["train.py", "--hub_token", "Zx9Secret", "--wandb_key=Zx9Secret", "--lr", "1e-4"]
    (run_dir / "header.json").write_text(json.dumps(header))
    assert main(["report", str(run_dir)]) == 0
    text = (run_dir / "report.html").read_text()
    assert "Zx9Secret" not in text
    assert "--hub_token" in text


@pytest.mark.parametrize("where", ["header", "row"])
def test_a_format_of_the_future_is_refused_in_one_line(run_dir: Path, capsys, where: str) -> None:
    if where == "header":
        (run_dir / "header.json").write_text(json.dumps({"format": FORMAT + 98}))
    else:
        append(run_dir, {"kind": "open", "format": FORMAT + 98})
    for verb in ("diagnose", "report"):
        assert main([verb, str(run_dir)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "format 99 (expected 1; update finitune)" in line


WRONG = [
    {"event": "incident", "symptom": ["x"]}, {"event": "incident", "id": "1"}, {"event": "incident", "action": {}},
    {"event": "incident", "text": 5}, {"event": "arm", "incident": 1},
    {"event": "arm", "incident": 1, "arm": ["x"], "cause": "c", "expect": "finite", "result": "finite"},
    {"event": "arm", "incident": 1, "arm": "x", "cause": {}, "expect": "finite", "result": "finite"},
    {"event": "origin", "incident": 1, "why_not": {}}, {"event": "origin", "incident": [1]},
    {"event": "origin", "incident": 1, "repeats": "yes"}, {"event": "action", "incident": 1, "text": {}},
    {"event": "stop", "incident": 1, "time": "now"}, {"event": "incident", "last_good": "five"},
]  # fmt: skip


@pytest.mark.parametrize("fields", WRONG, ids=json.dumps)
def test_a_field_of_the_wrong_type_is_left_out_and_said(run_dir: Path, fields: dict) -> None:
    append(run_dir, {"kind": "event", "step": 6, **fields})
    found = diagnose(run_dir)
    assert len(found.incidents) == 1
    assert any("it was left out" in one.why for one in found.not_checked)


ODD = [
    {"event": "origin", "incident": 1, "origin": [], "layers": 3},
    {"event": "origin", "incident": 1, "origin": {"rows": 3}},
    {"event": "origin", "incident": 1, "origin": {"module": ["x"], "phase": {}, "op": 3, "tokens": "x", "line": []}},
    {"event": "arm", "incident": 1, "arm": "no-such", "cause": "no-such", "expect": "x", "result": "y"},
    {"event": "incident", "id": 2, "rank": "x"}, {"event": "incident", "id": 3, "facts": 3},
    {"event": "incident", "id": None}, {"event": "incident", "frames": 3},
    {"event": "action", "incident": 1}, {"event": "stop"}, {"event": "log"}, {"event": "broken", "text": "\u202e"},
]  # fmt: skip


@pytest.mark.parametrize("fields", ODD, ids=json.dumps)
def test_odd_events_are_no_traceback(run_dir: Path, capsys, fields: dict) -> None:
    append(run_dir, {"kind": "event", "step": 6, **fields})
    assert main(["diagnose", str(run_dir)]) == 1
    assert main(["diagnose", str(run_dir), "--format", "json"]) == 1
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    assert main(["report", str(run_dir)]) == 0
    assert "internal" not in capsys.readouterr().err


@pytest.mark.slow
def test_many_incidents_are_read_in_linear_time(run_dir: Path) -> None:
    append(
        run_dir, *[{"kind": "event", "event": "incident", "step": 6, "id": n, "symptom": "x"} for n in range(20_000)]
    )
    done = in_a_process("diagnose", run_dir, "--format", "json", seconds=120)
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    assert len(found["incidents"]) == 20_001
    assert any("incidents" in one["why"] for one in found["not_checked"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs resource limits")
def test_a_disk_that_stays_full_leaves_a_gap_that_is_said(tmp_path: Path) -> None:
    script = (
        "import resource, signal, sys\n"
        "from finitune.recording import Recorder\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "recorder = Recorder(sys.argv[1])\n"
        "recorder.header({})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "for step in range(1, 101): recorder.step(step, loss=1.0)\n"
        "recorder.event('incident', step=100, id=1, symptom='nonfinite-loss')\n"
        "recorder.event('end', step=100)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, stderr=subprocess.DEVNULL)
    found = diagnose(tmp_path)
    assert not found.incidents
    assert "full disk" in found.not_checked[-1].why
