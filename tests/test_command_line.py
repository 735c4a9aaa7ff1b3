"""What is typed into a command as a secret is not kept; what only looks like one is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finitune.command_line import MASK, masked
from finitune.recording import Recorder

SECRET = "Zx9Secret"
SPELT = [
    ["--hub_token", SECRET], ["--hub-token", SECRET], [f"--wandb_key={SECRET}"], ["--api_key", SECRET],
    ["-token", SECRET], ["--token", SECRET], [f"WANDB_API_KEY={SECRET}"], [f"+trainer.wandb.apiKey={SECRET}"],
    ["--password", SECRET], [f"--db.password:{SECRET}"], [f"https://user:{SECRET}@host/repo.git"],
    [f"git+https://{SECRET}@github.com/x/y"], [f"https://host/x?lr=1&access_token={SECRET}"],
    ["-c", f"login('hf_{SECRET}')"], ["--aws_secret_access_key", SECRET], ["--hub_token", f"-{SECRET}"],
]  # fmt: skip
PLAIN = [
    ["--eos_token", "</s>"], ["--pad-token=<pad>"], ["--max_new_tokens", "256"], ["--tokens", "6,7"],
    ["--dataset_key", "text"], ["--tokenizer_name", "gpt2"], ["--lr", "1e-4"], ["https://host/x?page=2"],
    ["--messages_key=chat"], ["user@host"], ["--monkey", "business"],
]  # fmt: skip


@pytest.mark.parametrize("words", SPELT, ids=" ".join)
def test_a_secret_is_masked(words: list[str]) -> None:
    shown = masked(["train.py", *words, "--lr", "1e-4"])
    assert SECRET not in " ".join(shown)
    assert MASK in " ".join(shown)
    assert shown[-2:] == ["--lr", "1e-4"]


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
def test_what_is_no_secret_is_kept(words: list[str]) -> None:
    assert masked(words) == words


@given(words=st.lists(st.text(max_size=20), max_size=6))
def test_any_words_keep_their_number_and_masking_twice_changes_nothing(words: list[str]) -> None:
    assert len(masked(words)) == len(words)
    assert masked(masked(words)) == masked(words)


def test_a_recording_does_not_hold_them(tmp_path) -> None:
    recorder = Recorder(tmp_path)
    recorder.header({}, command=["train.py", "--hub_token", SECRET, f"--wandb_key={SECRET}", "--lr", "1"])
    recorder.close()
    assert SECRET not in (tmp_path / "header.json").read_text()
    assert json.loads((tmp_path / "header.json").read_text())["command"][-2:] == ["--lr", "1"]
