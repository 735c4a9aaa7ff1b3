"""A repair copies nothing from elsewhere, waits for nothing, and cleans up after one that was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sources import worlds

from finitune.cli.main import main
from finitune.repairs.outputs import manifest_of, temporary

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs links, pipes and numbers of processes")
REPAIRS = {
    "rows": ("repair", "reinit-token-rows", "--tokens", "6"),
    "cast": ("repair", "cast-weights", "--dtype", "float32"),
}


@pytest.mark.parametrize("repair", REPAIRS)
@pytest.mark.parametrize("kind", ["outside", "zero", "pipe", "directory", "nowhere"])
def test_what_is_no_file_of_the_model_is_not_copied(tmp_path: Path, capsys, repair: str, kind: str) -> None:
    model = worlds.model(tmp_path / "m")
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    stray = model / "leak.txt"
    if kind == "pipe":
        os.mkfifo(stray)
    else:
        targets = {"outside": "secret", "directory": "elsewhere", "nowhere": "absent"}
        stray.symlink_to("/dev/zero" if kind == "zero" else tmp_path / targets[kind])
    assert main([*REPAIRS[repair], "--model", str(model), "--output", str(tmp_path / "o")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "leak.txt" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "m", "secret"]


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_a_killed_repair_left_is_removed_by_the_next(tmp_path: Path, dead: int) -> None:
    model = worlds.model(tmp_path / "m")
    (tmp_path / f".o.{dead}.tmp").mkdir()
    (tmp_path / f".o.{dead}.tmp" / "model.safetensors").write_bytes(bytes(100))
    kept = [tmp_path / f".o.{os.getppid()}.tmp", tmp_path / f".other.{dead}.tmp", tmp_path / ".o.notes.tmp"]
    for path in kept:
        path.write_text("")
    assert main([*REPAIRS["rows"], "--model", str(model), "--output", str(tmp_path / "o")]) == 0
    assert sorted(tmp_path.glob(".*")) == sorted(kept)


def test_those_of_a_patched_file_too(tmp_path: Path, dead: int) -> None:
    file = tmp_path / "zero2.json"
    for name in (file.name, manifest_of(file).name, f"{file.name}.before-repair"):
        (tmp_path / f".{name}.{dead}.tmp").write_text("")
    assert temporary(file) == tmp_path / f".zero2.json.{os.getpid()}.tmp"
    assert not list(tmp_path.iterdir())
