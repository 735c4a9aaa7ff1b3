"""Readers of logs: every format by its content, line numbers, restarts, ranks; and nothing of a log is trusted."""

from __future__ import annotations

import gzip
import json
import math
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finitune.finding import UnreadableInput
from finitune.sources import logs
from finitune.sources.logs import LogReading, tensorboard


def read(tmp_path: Path, text: str | bytes, name: str = "train.log") -> LogReading:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return logs.read(path)


def rows(reading: LogReading, name: str = "loss") -> list[tuple[int, float, int]]:
    trace = reading.attempts[-1].trace(name)
    return list(zip(trace.steps, trace.values, trace.lines, strict=True))


RECORDS = [
    ("{'loss': 2.5, 'grad_norm': 1.25, 'learning_rate': 1e-05, 'epoch': 0.1}", 2.5),
    ("{'loss': '2.5', 'grad_norm': '1.25', 'learning_rate': '1e-05', 'epoch': '0.1'}", 2.5),
    ('{"loss": 2.5, "grad_norm": 1.25, "lr": 1e-05, "epoch": 0.1}', 2.5),
    ("[rank0]: {'loss': 2.5, 'entropy': 1.2, 'grad_norm': 1.25, 'learning_rate': 1e-05}", 2.5),
    (
        "[INFO|2026-01-01 00:00:00] llamafactory.train.callbacks:143 >> {'loss': 2.5, 'grad_norm': 1.25, 'lr': 1e-05}",
        2.5,
    ),
    ("\x1b[34m{'loss': 2.5, \x1b[0m'grad_norm': 1.25, 'learning_rate': 1e-05}", 2.5),
    ("{'loss': 2.5, 'grad_norm':\n 1.25, 'learning_rate': 1e-\n05, 'epoch': 0.1}", 2.5),
    ("{'lo{'loss': 2.5, 'grad_norm': 1.25, 'learning_rate': 1e-05}ss': 3", 2.5),
    ("step 1: loss 2.5, grad_norm 1.25, lr 1e-05", 2.5),
    ("Epoch 0:   1%|#  | 1/100 [00:01<00:10, 1.0it/s, v_num=3, train_loss=2.5, grad_norm=1.25, lr=1e-05]", 2.5),
    ("iteration 1/ 80 | lm loss: 2.5E+00 | loss scale: 1.0 | grad norm: 1.25 | learning rate: 1e-05", 2.5),
]


@pytest.mark.parametrize(("text", "loss"), RECORDS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_one_record_in_every_spelling(text: str, loss: float, end: str, tmp_path: Path) -> None:
    reading = read(tmp_path, f"some line\nanother\n{text}{end}the end\n")
    assert rows(reading) == [(1, loss, 3)]
    assert rows(reading, "grad_norm") == [(1, 1.25, 3)]
    if "iteration" not in text:
        assert rows(reading, "lr") == [(1, 1e-05, 3)]


def test_lines_in_memory_read_as_those_of_a_file(tmp_path: Path) -> None:
    lines = ["version of nothing", "{'loss': 2.5, 'grad_norm': nan}\n{'loss': 0.0, 'grad_norm': nan}", "end \ud800"]
    reading = logs.read_lines(lines, "case.json: log")
    assert rows(reading) == [(1, 2.5, 2), (2, 0.0, 3)]
    assert reading.attempts[0].file == "case.json: log"


def test_numbers_that_are_none_are_kept(tmp_path: Path) -> None:
    text = "{'loss': nan, 'grad_norm': inf, 'learning_rate': 0}\n{'loss': '0', 'grad_norm': 'nan'}\n"
    found = [value for _, value, _ in rows(read(tmp_path, text))]
    assert math.isnan(found[0])
    assert found[1] == 0.0


def test_a_record_behind_a_progress_bar_has_its_step(tmp_path: Path) -> None:
    text = "".join(
        f"\r {n}%|## | {n}/40 [00:01<00:01, 9.0it/s]\r      \r{{'loss': {n}.5, 'epoch': {n / 40}}}\n"
        for n in (5, 10, 15)
    )
    assert [(step, line) for step, _, line in rows(read(tmp_path, text))] == [(5, 1), (10, 2), (15, 3)]


def test_a_bar_that_draws_itself_anew_is_one_line(tmp_path: Path) -> None:
    text = "\r".join(f"Training: | {n}/9 [00:00<00:01, 8it/s, loss={'nan' if n > 3 else 2.5}]" for n in range(1, 9))
    reading = read(tmp_path, f"start\n{text}\nend\n")
    assert [step for step, _, _ in rows(reading)] == list(range(1, 9))
    assert {line for _, _, line in rows(reading)} == {2}


def test_restarts_are_attempts(tmp_path: Path) -> None:
    once = [f"{{'loss': {3 - i / 10}, 'grad_norm': 1.0, 'learning_rate': 0.1, 'epoch': {i / 10}}}" for i in range(8)]
    reading = read(tmp_path, "\n".join([*once, "torchrun: restarting", *once[2:]]))
    assert [len(attempt.trace("loss")) for attempt in reading.attempts] == [8, 6]
    assert reading.attempts[1].trace("loss").lines[0] == 10


OVERFLOW = "[deepspeed] OVERFLOW! Rank {} Skipping step. Attempted loss scale: {}, reducing to {}"


def test_overflow_lines_of_several_ranks_count_once(tmp_path: Path) -> None:
    ladder = [OVERFLOW.format(rank, 2**k, 2 ** (k - 1)) for k in (16, 15, 14) for rank in (0, 1)]
    reading = read(tmp_path, "\n".join(ladder))
    assert [(s, v, line) for s, v, line in rows(reading, "loss_scale")] == [(1, 2**15, 1), (2, 2**14, 3), (3, 2**13, 5)]
    assert reading.facts.precision is not None
    assert reading.facts.precision.compute == "float16"


def test_a_row_after_an_overflow_is_of_the_same_step(tmp_path: Path) -> None:
    text = f"{OVERFLOW.format(0, 65536, 32768)}\n{{'loss': 2.5}}\n{{'loss': 2.4}}\n"
    reading = read(tmp_path, text)
    assert [(step, value) for step, value, _ in rows(reading, "skipped")] == [(1, 1.0), (2, 0.0)]
    assert [step for step, _, _ in rows(reading)] == [1, 2]


def test_a_wrapped_overflow_is_read_once_with_its_scale(tmp_path: Path) -> None:
    text = "[2026-01-01 00:00:00,000] [INFO] [loss_scaler.py:190:update_scale] " + OVERFLOW.format(0, 65536, 32768)
    for width in range(text.index("Rank"), len(text) + 1):
        reading = read(tmp_path, f"{text[:width]}\n{text[width:]}\n{{'loss': 2.5}}\n")
        assert [(step, value) for step, value, _ in rows(reading, "loss_scale")] == [(1, 2.0**15)], width
        assert [step for step, _, _ in rows(reading)] == [1]


def test_three_spellings_of_a_skipped_step(tmp_path: Path) -> None:
    zero0 = (
        "[INFO] [unfused_optimizer.py:286:_update_scale] Grad overflow on iteration: 0\n"
        "[INFO] [unfused_optimizer.py:287:_update_scale] Reducing dynamic loss scale from 65536 to 32768.0\n"
        "step 1/9 loss 3.1\n"
    )
    reading = read(tmp_path, zero0)
    assert rows(reading, "skipped") == [(1, 1.0, 1)]
    assert rows(reading, "loss_scale") == [(1, 32768.0, 2)]
    assert rows(reading) == [(1, 3.1, 3)]
    unscaled = "OVERFLOW! Skipping step. Gradients are non-finite, weights were not updated.\n"
    assert rows(read(tmp_path, unscaled), "skipped") == [(1, 1.0, 1)]
    counted = "[Rank 0] step=10, skipped=10, lr=[0.0005], mom=[(0.9, 0.999)]\n[Rank 0] step=20, skipped=12, lr=[0.1]\n"
    assert rows(read(tmp_path, counted), "skipped") == [(10, 1.0, 1), (20, 0.0, 2)]


def test_of_several_ranks_the_first_counts_and_what_is_not_finite(tmp_path: Path) -> None:
    lines = [
        f"[rank{r}]: step {s + r % 2}: loss {'nan' if (s, r) == (6, 1) else 2.5 + r}"
        for s in range(9)
        for r in range(3)
    ]
    reading = read(tmp_path, "\n".join(lines))
    assert len(reading.attempts) == 1
    assert [step for step, value, _ in rows(reading) if math.isnan(value)] == [6]
    assert {value for _, value, _ in rows(reading) if not math.isnan(value)} == {2.5}


TABLES = [
    "Step\tTraining Loss\tValidation Loss\n10\t2.5\tNo log\n20\t0.000000\tnan\n\nthe end 3\n",
    "| Step | Training Loss | Validation Loss |\n|:----|-----|-----|\n| 10 | 2.5 | No log |\n| 20 | 0.000000 | nan |\n",
    "Step Training Loss Validation Loss\n10 2.5 No log\n20 0.000000 nan\nbye\n",
    ("<table><thead>\n<tr style='x'>\n<th>Step</th>\n<th>Training Loss</th>\n<th>Validation Loss</th></tr>\n<tbody>\n"
    "<tr>\n<td>10</td>\n<td>2.5</td>\n<td>No log</td></tr><tr><td>20</td>\n<td>0.000000</td><td>nan</td></tr></table>"),
]  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_the_table_of_a_notebook(table: str, tmp_path: Path) -> None:
    reading = read(tmp_path, f"before\n{table}\n{{'loss': 1.5}}\n")
    assert [(step, value) for step, value, _ in rows(reading)] == [(10, 2.5), (20, 0.0), (21, 1.5)]
    lines = f"before\n{table}\n".split("\n")
    assert "2.5" in lines[rows(reading)[0][2] - 1] or "No log" in lines[rows(reading)[0][2] - 1]
    assert [step for step, _, _ in rows(reading, "eval_loss")] == [20]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-16-be"])
def test_what_powershell_writes(encoding: str, tmp_path: Path) -> None:
    text = "first \u2588\r\n{'loss': 2.5, 'grad_norm': nan}\r\n"
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    assert rows(read(tmp_path, mark + text.encode(encoding))) == [(1, 2.5, 2)]


def test_the_file_that_llama_factory_writes(tmp_path: Path) -> None:
    text = "".join(
        f'{{"current_steps": {n}, "total_steps": 40, "loss": 2.5, "lr": 1e-05, "epoch": {n / 40}, "percentage": 2.5, '
        '"elapsed_time": "0:00:01", "remaining_time": "0:01:00"}\n' for n in (5, 10, 15)
    )  # fmt: skip
    assert [(step, line) for step, _, line in rows(read(tmp_path, text, "trainer_log.jsonl"))] == [
        (5, 1),
        (10, 2),
        (15, 3),
    ]


def test_facts_that_are_printed(tmp_path: Path) -> None:
    text = (
        "transformers==4.34.0\nDeepSpeed info: version=0.12.5, git-hash=unknown\nGPU: Tesla V100-SXM2-32GB\n"
        "  bfloat16_enabled ............. True\n  zero_optimization_stage ...... 2\n{'loss': 1.5}\n"
    )
    facts = read(tmp_path, text).facts
    assert facts.versions == {"transformers": "4.34.0", "deepspeed": "0.12.5"}
    assert facts.precision is not None
    assert facts.precision.compute == "bfloat16"
    assert facts.precision.source == "train.log:4"
    assert facts.parallel is not None
    assert facts.parallel.zero_stage == 2
    assert facts.hardware is not None
    assert facts.hardware.name == "V100"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", "probability-tensor"),
        ("ValueError: Attempting to unscale FP16 gradients.", "unscale-fp16-gradients"),
        ("Assertion `srcIndex < srcSelectDimSize` failed.", "token-out-of-range"),
        ("RuntimeError: CUDA error: device-side assert triggered", "device-side-assert"),
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore.", "scale-at-minimum"),
        ("UserWarning: None of the inputs have requires_grad=True.", "checkpoint-without-gradient"),
        ("WARNING: tokenization mismatch: 69 vs. 70. (ignored)", "tokenization-mismatch"),
        ("Found NaN or inf values in parameter 'a.lora_A' of module 'LLM'", "nonfinite-parameter"),
    ],
)
def test_known_messages(text: str, kind: str, tmp_path: Path) -> None:
    said = read(tmp_path, f"Traceback (most recent call last):\n  File x\n{text}\n").messages
    assert [(one.kind, one.line) for one in said if one.kind != "crash"] == [(kind, 3)]


def test_gzip_csv_and_trainer_state(tmp_path: Path) -> None:
    record = b"{'loss': 2.5, 'grad_norm': nan}\n"
    assert rows(read(tmp_path, gzip.compress(record * 3), "train.log.gz")) == rows(read(tmp_path, record * 3))
    table = "epoch,step,train_loss_step,val_loss\n0,10,2.5,\n0,20,nan,\n0,20,,2.4\n"
    found = rows(read(tmp_path, table, "metrics.csv"))
    assert [(step, line) for step, _, line in found] == [(10, 2), (20, 3)]
    state = {"log_history": [{"loss": 2.5, "step": 5}, {"eval_loss": 2.0, "step": 5}, {"loss": math.nan, "step": 10}]}
    reading = read(tmp_path, json.dumps(state, indent=2), "trainer_state.json")
    assert [(step, line) for step, _, line in rows(reading)] == [(5, 3), (10, 11)]
    assert rows(reading, "eval_loss")[0][:2] == (5, 2.0)


def event(step: int, tag: str, value: float) -> bytes:
    one = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(one)]) + one
    data = b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", tensorboard._masked_crc(head)) + data + b"\0\0\0\0"


def test_tensorboard_events(tmp_path: Path) -> None:
    data = event(1, "train/loss", 2.5) + event(1, "train/grad_norm", 1.5) + event(2, "train/loss", math.nan)
    reading = read(tmp_path, data, "events.out.tfevents.1")
    assert [(step, line) for step, _, line in rows(reading)] == [(1, 1), (2, 3)]
    assert rows(reading, "grad_norm") == [(1, 1.5, 1)]
    assert rows(read(tmp_path, data[:-9], "events.out.tfevents.2")) == rows(reading)[:1], "a record that was cut short"


@pytest.mark.slow
def test_tensorboard_itself_writes_what_is_read(tmp_path: Path) -> None:
    board = pytest.importorskip("torch.utils.tensorboard")
    with board.SummaryWriter(tmp_path) as writer:
        for step in range(5):
            writer.add_scalar("train/loss", 2.0 - step / 10, step)
    reading = logs.read(next(tmp_path.glob("events*")))
    assert [round(value, 3) for _, value, _ in rows(reading)] == [2.0, 1.9, 1.8, 1.7, 1.6]


def test_unreadable_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="nowhere"):
        logs.read(tmp_path / "nowhere.log")
    (tmp_path / "x.json").write_text('{"log_history": [')
    with pytest.raises(UnreadableInput, match=r"x\.json"):
        logs.read(tmp_path / "x.json")
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"x" * 1000)[:-9])
    with pytest.raises(UnreadableInput, match="gzip"):
        logs.read(tmp_path / "x.gz")


@pytest.mark.parametrize(
    "text",
    [
        b"loss " * 1_000_000,
        b"the loss " + b"x" * 50_000_000,
        b"{" * 1_000_000,
        b"{'loss': " * 300_000,
        b"{'a': {'loss': 1" * 100_000,
        b"loss" + b" " * 5_000_000,
        b"\x1b]" * 500_000,
        b"\r" * 1_000_000 + b"loss",
        b"iteration 1/ lm loss: " * 100_000,
        b"version: 1.1.1.1" * 100_000,
        b"loss\n" * 200_000,
    ],
    ids=lambda text: text[:14].decode().replace("\x1b", "ESC").replace("\r", "CR").replace("\n", "LF"),
)
def test_hostile_text_takes_no_quadratic_time(text: bytes, tmp_path: Path) -> None:
    """Megabytes of a quadratic pattern would take hours; the bound only tells these two apart on a busy machine."""
    start = time.process_time()
    read(tmp_path, text)
    assert time.process_time() - start < 40


PIECES = st.sampled_from([
    b"{'loss': 2.5, 'grad_norm': nan}", b"{", b"}", b"'loss': ", b"\n", b"\r", b"\x1b[31m", b"\xff\xfe", b"\0",
    b"loss=nan",
    b"OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1e999, reducing to 0",
    b"step=99999999999, skipped=3, lr=[x]",
    b"12/", b"/40 [", b"it/s]", b"Error: probability tensor contains either", b"epoch': nan", b"1e309", b"version=1.2",
    b"iteration 5/ 9 | lm loss: nan", b"step 999999999999999999 loss 1", b"log_history", b",", b'"', b"eval_loss': inf",
])  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES | st.binary(max_size=20), max_size=40))
def test_no_text_breaks_a_reader(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("log") / "x.log"
    path.write_bytes(b"".join(pieces))
    try:
        reading = logs.read(path)
    except UnreadableInput:
        return
    count = path.read_bytes().count(b"\n") + 1
    for attempt in reading.attempts:
        assert attempt.signals
        assert all(1 <= line <= count for trace in attempt.traces.values() for line in trace.lines)
    assert all(1 <= one.line <= count for one in reading.messages)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["noise", "", "\r 3%| 3/9 [1it/s]", "cross words of no account"]), max_size=30), st.data()
)
def test_lines_are_counted_right(
    tmp_path_factory: pytest.TempPathFactory, noise: list[str], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(noise)))
    lines = [*noise[:at], "{'loss': 1.5, 'grad_norm': 2.5}", *noise[at:]]
    path = tmp_path_factory.mktemp("log") / "x.log"
    path.write_text("\n".join(lines), newline="")
    assert logs.read(path).attempts[0].trace("loss").lines[0] == at + 1


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_every_row_is_read(end: str, tmp_path: Path) -> None:
    count = 200_000
    lines = (f"Epoch 0: {n}/999999 [00:01<00:01, 9it/s, loss={1 + 1 / n:.6f}]" for n in range(1, count + 1))
    found = rows(read(tmp_path, end.join(lines)))
    assert [step for step, _, _ in found] == list(range(1, count + 1))
    assert found[-1][2] == (count if end == "\n" else 1)


def test_rows_beyond_the_bound_are_left_out_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finitune.sources.logs.parsed_log.MOST_ROWS", 50)
    reading = read(tmp_path, "".join(f"step {n}: loss 2.5\n" for n in range(1, 100)))
    assert len(rows(reading)) == 50
    assert reading.not_checked == ["train.log: only the first 50 rows were read"]


def test_what_follows_a_wrapped_record_is_read(tmp_path: Path) -> None:
    text = "{'loss': 2.5, 'epoch':\n 0.1} {'loss': 2.4, 'epoch': 0.2}\n{'loss': 2.3, 'epoch': 0.3}\n"
    assert rows(read(tmp_path, text)) == [(1, 2.5, 1), (2, 2.4, 2), (3, 2.3, 3)]


def test_chunks_cut_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"noise {n}\n{{'loss': {n}.5,\n 'grad_norm': 1.5, 'epoch': {n}}}\n" for n in range(200))
    whole = rows(read(tmp_path, text))
    assert len(whole) == 200
    assert [line for _, _, line in whole] == [3 * n + 2 for n in range(200)]
    for size in (97, 256, 1000):
        monkeypatch.setattr("finitune.sources.logs.console.CHUNK", size)
        assert rows(read(tmp_path, text)) == whole


def test_lightning_pads_what_is_not_finite_and_rich_bars_tell_their_step(tmp_path):
    (tmp_path / "tqdm.log").write_text(
        "Epoch 0:   2%|2| 2/45 [00:00<00:05, 7.60it/s, train_loss=nan.0, grad_norm=inf.0]\n"
    )
    (tmp_path / "rich.log").write_text(
        "Epoch 0/-2 \u2501\u2501\u2501 7/32 0:00:01 \u2022 0:00:00 19.2it/s train_loss: 5.242\n", encoding="utf-8"
    )
    (bar,) = logs.read(tmp_path / "tqdm.log").attempts
    assert math.isnan(bar.trace("loss").values[0])
    assert bar.trace("grad_norm").values[0] == math.inf
    (drawn,) = logs.read(tmp_path / "rich.log").attempts
    assert list(drawn.trace("loss").steps) == [7]
