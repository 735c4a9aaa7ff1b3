"""Pads that see no key give zeros while the run goes on, and what is learned is what padding right would learn."""

from __future__ import annotations

import pytest
from tests.monitor.heal.small import LanguageModel, digest

from finitune.monitor.heal.forwards import run_within
from finitune.monitor.replay.empty_rows import EmptyRows
from finitune.monitor.watch import watch
from finitune.recording import Recording


def test_the_run_learns_as_one_that_pads_on_the_right(tmp_path, capsys):
    loop, reference = LanguageModel(), LanguageModel("right").train()
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        loop.train()
    assert loop.losses[1:] == pytest.approx(reference.losses[1:], rel=1e-4)
    events = Recording.load(tmp_path / "run").events("remedy")
    assert [(e["remedy"], e["state"]) for e in events] == [
        ("zero-masked-rows", "applied"), ("zero-masked-rows", "kept")
    ]  # fmt: skip
    assert events[0]["targets"] == ["blocks.0", "blocks.1"]
    assert "not with as many rows beside them instead" in capsys.readouterr().err


def test_rows_that_see_a_key_keep_their_bits():
    loop, other = LanguageModel("right"), LanguageModel("right").train()
    undo = run_within(loop.model.blocks, EmptyRows)
    loop.train()
    assert loop.losses == other.losses
    undo()
    assert digest(loop.model, loop.optimizer) == digest(other.model, other.optimizer)


def test_stays_quiet_where_every_row_sees_a_key(tmp_path):
    loop = LanguageModel("right")
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        loop.train()
    assert not Recording.load(tmp_path / "run").events("remedy", "incident")
