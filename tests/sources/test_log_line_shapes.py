"""Lines that differ in their numbers alone are read at once, and as they would be one by one."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from finitune.sources import logs
from finitune.sources.logs import bars, line_shapes
from finitune.sources.logs.attempt import Notes

SOUND = ("2.5", "0.0", "1e-05", "3.141592653589793", "12.0")
NUMBERS = (*SOUND, "-1.25", "nan", "inf", "7")
SHAPES = {
    "record": "{{'loss': {a}, 'grad_norm': {b}, 'learning_rate': 1e-05, 'epoch': {e}}}\n",
    "strings": "{{'loss': '{a}', 'grad_norm': '{b}', 'entropy': '{a}', 'epoch': '{e}'}}\r\n",
    "reward": "{{'loss': {a}, 'reward': {b}, 'kl': {b}, 'epoch': {e}}}\n",
    "evaluation": "{{'eval_loss': {a}, 'epoch': {e}}}\n",
    "lines of JSON": '{{"current_steps": {n}, "loss": {a}, "lr": {b}, "epoch": {e}}}\n',
    "below a bar": "  1%|1    | {n}/999 [00:{n:02d}<00:09, {a}it/s]\r   \r{{'loss': {a}, 'epoch': {e}}}\n",
    "plain": "step {n} | loss {a} | grad_norm {b} | lr 1.9e-05\n",
    "timed": "2026-01-01 00:00:{n:02d} step: {n} loss: {a} lr: {b}\n",
    "without steps": "loss={a} grad_norm={b}\n",
    "drawn": "Epoch {m}:  {n}%|{n:#<5}| {n}/60 [00:{n:02d}<01:00, {b}it/s, train_loss={a}]\r",
    "rank": "[rank{m}]: step {n}: loss {a}\n",
    "overflow": "[INFO] [{n}] OVERFLOW! Rank {m} Skipping step. Attempted loss scale: {n}, reducing to {a}\n",
    "progress": "[Rank 0] step={n}, skipped={m}, lr=[{a}], mom=[(0.9, 0.999)]\n",
    "megatron": " iteration {n}/ 80 | elapsed: {b} | lm loss: {a} | loss scale: {b} | grad norm: {b} |\n",
    "evaluated beside": "step {n} loss {a} val_loss={b}\n",
    "noise": "saving the loss of {n}\n",
}


def log_of_runs(chance: random.Random) -> str:
    """Runs of lines of one shape; steps and epochs rise but for a few restarts."""
    out, step, epoch = list[str](), 0, 0
    for _ in range(chance.randint(1, 5)):
        shape = SHAPES[chance.choice(sorted(SHAPES))]
        numbers = chance.choice((SOUND, NUMBERS))
        other = chance.randint(0, 2)
        for _ in range(chance.randint(1, 60)):
            if chance.random() < 0.02:
                step, other, epoch = chance.randint(0, 9), other + 1, chance.randint(0, epoch)
            a, b = chance.choice(numbers), chance.choice(numbers)
            out.append(shape.format(a=a, b=b, n=step, m=other, e=epoch / 8))
            step, epoch = step + chance.choice((1, 1, 1, 1, 0, 5)), epoch + chance.randint(0, 1)
    return "".join(out)


def told(path: Path) -> Any:
    reading = logs.read(path)
    rows = [
        (a.last_step, a.last_epoch, a.pending, a.epochs, a.begins, a.rewards,
         {name: (list(t.steps), [*map(repr, t.values)], list(t.lines)) for name, t in a.traces.items()})
        for a in reading.attempts
    ]  # fmt: skip
    return rows, list(reading.said), list(reading.not_checked)


def test_lines_alike_are_read_as_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "alike.log"
    texts = [log_of_runs(random.Random(seed)) for seed in range(200)]
    readings = list[list[Any]]()
    for samples in (line_shapes.LEARNED_FROM, 10**9):
        monkeypatch.setattr(line_shapes, "LEARNED_FROM", samples)
        readings.append([])
        for text in texts:
            path.write_text(text, newline="")
            readings[-1].append(told(path))
    for seed, (at_once, one_by_one) in enumerate(zip(*readings, strict=True)):
        assert at_once == one_by_one, seed


@pytest.mark.parametrize(
    "name", ["record", "strings", "lines of JSON", "below a bar", "plain", "timed", "drawn", "overflow", "megatron"]
)
def test_most_lines_of_a_run_are_not_given_to_their_format(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is counted: lines that were noted one by one."""
    lines = [SHAPES[name].format(a=f"{1 + 1 / n:.5f}", b=f"{2 + 1 / n:.4f}", n=n, m=0, e=n / 8) for n in range(1, 5000)]
    (tmp_path / "x.log").write_text("".join(lines), newline="")
    single = list[int]()
    begin_line = Notes.begin_line
    monkeypatch.setattr(
        Notes, "begin_line", lambda notes, *told, **more: (single.append(1), begin_line(notes, *told, **more))
    )
    reading = logs.read(tmp_path / "x.log")
    trace = reading.attempts[-1].trace("skipped" if name == "overflow" else "loss")
    assert len(trace) == 4999
    assert len(single) < 100


def test_a_format_that_does_not_say_so_reads_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "read", lambda text, line, notes: notes.row({"loss": 1.0}, line) or True)
    (tmp_path / "x.log").write_text("".join(f"step {n} loss 1.0\n" for n in range(1, 200)))
    assert list(logs.read(tmp_path / "x.log").attempts[0].trace("loss").lines) == list(range(1, 200))


@pytest.mark.parametrize(
    "line",
    [b"1.1." * 200, b"9" * 900, b"1.5e" * 200, b"1.5-" * 200, b"'a': 1.5" * 100, b" 1%|" * 200 + b"|", b"5/" * 400],
)
def test_no_line_makes_an_expression_that_tries_for_long(line: bytes, tmp_path: Path) -> None:
    """Lines that are nearly alike: hours, and the timeout of pytest, if the ways to share characters were tried."""
    lines = [b"step %d loss 2.5 %b%b\n" % (n, line, b"!" if n % 4 == 3 else b"") for n in range(1, 400)]
    (tmp_path / "x.log").write_bytes(b"".join(lines))
    assert len(logs.read(tmp_path / "x.log").attempts[0].trace("loss")) == 399


def test_the_number_of_shapes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[line_shapes._Shape]()
    monkeypatch.setattr(
        line_shapes, "_Shape", lambda *told, shape=line_shapes._Shape: made.append(shape(*told)) or made[-1]
    )
    words = ("".join(letters) for letters in itertools.product("abcdefgh", repeat=4))
    lines = [f"step {2 * n + twin} {word} loss 2.5\n" for n, word in enumerate(words) for twin in (0, 1)]
    (tmp_path / "x.log").write_text("".join(lines))
    assert len(logs.read(tmp_path / "x.log").attempts[0].trace("loss")) == 2 * 8**4
    assert 0 < len(made) <= line_shapes.MOST_TRIED
