"""What `diagnose` and `report` take without a path, what is piped in, and the verb that explains remedies."""

import io
import os
from pathlib import Path

import pytest

from finitune.chapter import causes, remedies
from finitune.cli.main import main
from finitune.recording import newest

LOG = "{'loss': 1.5, 'grad_norm': 2.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n" * 5
BAD = "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.2}\n"


def recording(folder: str, at: int) -> Path:
    path = Path(folder)
    path.mkdir(parents=True)
    file = path / "rank00000.jsonl"
    file.write_text("".join(f'{{"step": {step}, "loss": 1.0, "grad_norm": 1.0}}\n' for step in range(1, 4)))
    os.utime(file, (at, at))
    return path


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_users_18_the_newest_run_is_taken_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    recording("runs/b-older", 1_000)
    recording("runs/a-newer", 2_000)
    Path("runs/z-empty").mkdir()
    assert main(["diagnose"]) == 0
    out, err = capsys.readouterr()
    assert "finitune: runs/a-newer, the newest run" in err
    assert "healthy" in out
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    assert main(["report"]) == 0
    assert Path("runs/a-newer/report.html").is_file()


def test_stays_quiet_where_no_run_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert newest("runs") is None
    Path("runs/z-empty").mkdir(parents=True)
    assert newest("runs") is None
    assert main(["diagnose"]) == 2
    assert "no run is recorded under runs/ here" in capsys.readouterr().err


def test_a_named_run_wins_over_the_newest(capsys: pytest.CaptureFixture[str]) -> None:
    recording("runs/older", 1_000)
    recording("runs/newer", 2_000)
    assert main(["diagnose", "runs/older"]) == 0
    assert "newest" not in capsys.readouterr().err


@pytest.mark.parametrize(("text", "code", "said"), [(LOG + BAD, 1, "stdin:6"), (LOG, 0, "healthy"), ("", 2, "stdin")])
def test_users_11_what_is_piped_in_is_read(
    text: str, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["diagnose", "-"]) == code
    out, err = capsys.readouterr()
    assert said in out + err
    assert "/tmp" not in out + err


def test_users_19_remedies_are_listed_with_what_their_words_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["remedies"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in remedies())
    for word in ("safe: ", "unsafe: ", "advice: "):
        assert any(line.startswith(word) for line in lines)


@pytest.mark.parametrize("name", remedies())
def test_every_remedy_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["remedies", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"# {name}\n\n{remedies()[name].title}")
    assert "## What it changes" in out
    assert f"\n{remedies()[name].safety.capitalize()}: " in out
    used = [cause for cause, chapter in causes().items() if name in chapter.declared("remedies")]
    assert all(cause in out for cause in used)
