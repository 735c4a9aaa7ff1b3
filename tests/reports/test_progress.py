"""The bar: seen on a terminal when work lasts, never elsewhere, and the output proper is not touched."""

import json
import os
import pty
import subprocess
import sys

import pytest
from tests.sources import worlds
from tests.sources.worlds import chat, jsonl, settings

from finitune.reports import progress

CHECK = "import sys; from finitune.reports import progress; progress.DELAY = float(sys.argv.pop(1)); "
CHECK += "from finitune.cli.main import main; sys.exit(main())"


def run(tmp_path, delay: float, *more: str) -> tuple[str, str]:
    """Standard output, and what a terminal on standard error shows."""
    world = [
        str(settings(tmp_path / "a.json", bf16=True)), "--model", str(worlds.model(tmp_path / "m")),
        "--data", str(jsonl(tmp_path / "d.jsonl", [chat()] * 600)),
    ]  # fmt: skip
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", CHECK, str(delay), "check", *world, *more],
        stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"}, text=True,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 4096):
            seen += piece
    except OSError:  # how Linux says that the other side is closed
        pass
    out = child.stdout.read()
    assert child.wait() == 0, seen
    return out, seen.decode()


@pytest.mark.parametrize("form", ["json", "sarif"])
def test_long_work_shows_a_bar_on_the_terminal_and_clean_json_on_the_other_stream(tmp_path, form):
    out, seen = run(tmp_path, 0.0, "--format", form)
    json.loads(out)
    for what in ("weights", "embedding rows", "rows of data"):
        assert what in seen


def test_short_work_shows_nothing(tmp_path):
    out, seen = run(tmp_path, 60.0)
    assert seen == ""
    assert "\nok: nothing found" in out


def test_without_a_terminal_nothing_is_shown(capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.0)
    assert list(progress.bar(iter("abc"), "letters", 3)) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_an_error_in_the_work_is_the_callers(monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)

    def broken():
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(progress.bar(broken(), "work", None))
