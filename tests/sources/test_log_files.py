"""Logs of several ranks in one file, and logs that are packed."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
from tests.sources.test_logs import read, rows

from finitune.finding import UnreadableInput


@pytest.mark.parametrize("ranks", [2, 4, 16])
@pytest.mark.parametrize("label", ["{}: ", "{:>3}: ", "{:02}: "])
def test_ranks_that_srun_labels_are_told_apart(ranks: int, label: str, tmp_path: Path) -> None:
    lines = [
        "Currently Loaded Modules: cuda/12.4",
        *(label.format(n % ranks) + "loading" for n in (0, 0, *range(ranks))),
    ]
    for step in range(1, 40):
        order = range(ranks) if step % 2 else reversed(range(ranks))
        lines += [f"{label.format(rank)}{{'loss': {step}.{rank}, 'grad_norm': 1.5, 'epoch': {step}}}" for rank in order]
    reading = read(tmp_path, "\n".join(lines))
    assert len(reading.attempts) == 1
    assert [(step, value % 1) for step, value, _ in rows(reading)] == [(step, 0) for step in range(1, 40)]


def test_a_rank_that_srun_labels_is_heard_where_it_alone_is_lost(tmp_path: Path) -> None:
    lines = [
        f"{rank}: {{'loss': {'nan' if (rank, step) == (1, 4) else 2.5}}}" for step in range(1, 6) for rank in (0, 1)
    ]
    found = rows(read(tmp_path, "\n".join(lines)))
    assert [step for step, value, _ in found if math.isnan(value)] == [4]
    assert len(found) == 5


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_loop_that_labels_its_steps_has_no_ranks(epochs: int, tmp_path: Path) -> None:
    lines = [f"{step}: loss 2.{step}" for _ in range(epochs) for step in range(50)]
    assert len(rows(read(tmp_path, "\n".join(lines)))) == 50 * epochs
    lines = [f"{step}: loss 2.{step}" for step in range(0, 5000, 100)] * 2
    assert len(rows(read(tmp_path, "\n".join(lines)))) == 100


def test_a_packed_log_that_unpacks_without_end_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finitune.sources.logs.files.LEAST_UNPACKED", 2**23)
    bomb = gzip.compress(b"\0" * 2**25)
    assert 100 * len(bomb) < 2**23
    with pytest.raises(
        UnreadableInput, match="only the first 8 MB that it unpacks to were read, and it has no line about training"
    ) as told:
        read(tmp_path, bomb, "train.log.gz")
    assert "\n" not in str(told.value)
    reading = read(tmp_path, gzip.compress(b"step 1: loss 2.5\n" + b"\0" * 2**25), "train.log.gz")
    assert rows(reading) == [(1, 2.5, 1)]
    assert "only the first" in reading.not_checked[0]


def test_a_packed_log_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finitune.sources.logs.files.LEAST_UNPACKED", 2**10)
    text = "".join(f"step {n}: loss {1 + 1 / n:.6f}\n" for n in range(1, 20_000))
    reading = read(tmp_path, gzip.compress(text.encode()), "train.log.gz")
    assert len(rows(reading)) == 19_999
    assert not reading.not_checked
