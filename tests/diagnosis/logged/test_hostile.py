"""Whoever wrote the log does not steer who reads the diagnosis: no link, no control character, no markup passes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.reports.examples import record
from tests.reports.test_html import assert_harmless

from finitune.cli.main import main
from finitune.diagnosis.logged.incidents import diagnose_logs
from finitune.recording import Recording
from finitune.reports.run_page import page

ADDRESSES = [
    "https://evil.example/fix.exe",
    "HTTP://evil.example",
    "www.evil.example",
    "ftp://evil.example/a",
    "evil.example/fix.zip",
    "evil.example:8080/fix",
    "mailto:help@evil.example",
    "javascript:alert(document.evil)",
    "[the fix](//www.evil.example/x)",
    "ssh://git@evil.example:22/fix",
    "ht\u200btps://evil.example/x",
    "https://\u202eelpmaxe.evil",
]
CONTROLS = {
    "colour": "\x1b[31mred\x1b[0m",
    "title": "\x1b]0;owned\x07",
    "hyperlink": "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "eight-bit escape": "\x9b31m",
    "bell and backspace": "\x07\x08\x08\x08",
    "bidi": "\u202ecod.exe\u202c \u2066x\u2069",
    "zero width": "a\u200bb\ufeffc",
    "line separator": "a\u2028b\x85c",
    "cursor": "\x1b[2J\x1b[H",
    "nul": "a\x00b",
}
MARKUP = [
    "[bold red]x[/bold red]",
    "[link=https://evil.example]x[/link]",
    "<script>alert('evil')</script>",
    "<img src=x onerror=alert(1)>",
    "</td></table><svg onload=alert(1)>",
    "{{ 7*7 }}{% for x in y %}",
]
ERRORS = [
    "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0 {}",
    "ValueError: Attempting to unscale FP16 gradients. {}",
    "Exception: Current loss scale already at minimum - cannot decrease scale anymore. {}",
    "WARNING: tokenization mismatch: 812 vs. 811. (ignored) {}",
    "{{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}} {}",
    "Found NaN or inf values in parameter '{}' of module 'LLM'",
    "torch version: 2.5.0 {} transformers==4.38.1{}",
]
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def logged(path: Path, hostile: str, name: str = "train.log") -> Path:
    lines = [error.format(*[hostile] * error.count("{}")) for error in ERRORS]
    (path / name).write_bytes("\n".join(lines).encode("utf-8", "surrogateescape") + b"\n")
    return path / name


def shown(log: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What the terminal and JSON say of this log, everything told."""
    assert main(["diagnose", str(log), "--verbose"]) == 1
    terminal = capsys.readouterr().out
    assert main(["diagnose", str(log), "--format", "json"]) == 1
    return {"terminal": terminal, "json": capsys.readouterr().out}


@pytest.mark.parametrize("address", ADDRESSES, ids=map(str, range(len(ADDRESSES))))
def test_no_link_is_repeated(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form, text in shown(logged(tmp_path, f"see {address} for the fix"), capsys).items():
        assert "evil" not in text, form
    assert "evil" not in page(Recording.load(record(tmp_path / "run")), diagnose_logs(tmp_path / "train.log"))


@pytest.mark.parametrize("kind", CONTROLS)
def test_control_characters_are_spelled_out(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form, text in shown(logged(tmp_path, CONTROLS[kind]), capsys).items():
        assert not CONTROL.search(text), form
        assert "evil" not in text, form


@pytest.mark.parametrize("markup", MARKUP)
def test_markup_is_text(markup: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = shown(logged(tmp_path, markup), capsys)
    assert "http" not in "".join(seen.values())
    if "http" not in markup:
        assert markup in " ".join(seen["terminal"].split())
        assert markup in " ".join(json.loads(seen["json"])["incidents"][0]["seen"])
    html = page(Recording.load(record(tmp_path / "run")), diagnose_logs(tmp_path / "train.log"))
    reader = assert_harmless(html)
    assert "49" not in re.findall(r"\b49\b", reader.text)


def test_the_name_of_a_file_is_text_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = logged(tmp_path, "x", name="tr\x1b[31m\u202ea<b>[red]in.log")
    for form, text in shown(log, capsys).items():
        assert not CONTROL.search(text), form
        assert "[red]in.log" in text, form
    assert_harmless(page(Recording.load(record(tmp_path / "run")), diagnose_logs(log)))
