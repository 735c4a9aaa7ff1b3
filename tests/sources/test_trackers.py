"""What experiment trackers leave behind: W&B's files and exports, MLflow's folders, Trackio's database."""

import json
import math
import os
import sqlite3
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finitune.cli.main import main
from finitune.diagnosis.diagnose import diagnose
from finitune.finding import UnreadableInput
from finitune.sources import logs

LOSSES = [2.0 - 0.05 * i for i in range(14)] + [math.nan] * 4
"""Of steps 10, 20...; healthy up to step 140."""


def field(number: int, data: bytes) -> bytes:
    assert len(data) < 2**14
    size = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
    key = number << 3 | 2
    return (bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])) + size + data


def wandb_file(rows: list[dict[str, float]], *, padding: int = 0) -> bytes:
    """As wandb 0.31 writes it; checked against a run of its own."""
    out = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for row in rows:
        items = b"".join(
            field(1, field(2, name.encode()) + field(16, json.dumps(value).encode())) for name, value in row.items()
        )
        record = field(2, items) + field(7, b"x" * padding)
        first = True
        while record or first:
            left = 2**15 - len(out) % 2**15
            if left < 7:
                out += b"\0" * left
                continue
            piece, record = record[: left - 7], record[left - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[first, not record]
            out += struct.pack("<IHB", 0, len(piece), kind) + piece
            first = False
    return bytes(out)


def history() -> list[dict[str, float]]:
    return [
        {"train/loss": loss, "train/grad_norm": 1.0, "train/global_step": 10 * (i + 1), "_step": i}
        for i, loss in enumerate(LOSSES)
    ]


def first_bad(path: Path) -> int | None:
    (incident,) = diagnose(path).incidents
    return incident.step


@pytest.mark.parametrize("padding", [0, 5000])
def test_fires_an_offline_run_of_wandb(tmp_path: Path, padding: int) -> None:
    run = tmp_path / "wandb" / "offline-run-20260101_000000-abc"
    run.mkdir(parents=True)
    (run / "run-abc.wandb").write_bytes(wandb_file(history(), padding=padding))
    (tmp_path / "wandb" / "latest-run").symlink_to(run.name)
    for place in (run / "run-abc.wandb", run, tmp_path / "wandb", tmp_path):
        assert first_bad(place) == 150


def test_stays_quiet_a_healthy_run_of_wandb(tmp_path: Path) -> None:
    (tmp_path / "run-abc.wandb").write_bytes(wandb_file(history()[:14]))
    assert diagnose(tmp_path).verdict == "healthy"


@settings(max_examples=60)
@given(cut=st.floats(0, 1), junk=st.binary(max_size=30))
def test_a_damaged_file_of_wandb_is_read_as_far_as_it_goes(
    tmp_path_factory: pytest.TempPathFactory, cut: float, junk: bytes
) -> None:
    whole = wandb_file(history(), padding=5000)
    at = 7 + int(cut * (len(whole) - 7))
    file = tmp_path_factory.mktemp("wandb") / "run-a.wandb"
    file.write_bytes(whole[:at] + junk)
    try:
        reading = logs.read(file)
    except UnreadableInput:
        return
    assert sum(len(attempt.traces["loss"].values) for attempt in reading.attempts) <= len(LOSSES)


def test_users_11_the_export_of_a_panel_of_wandb(tmp_path: Path) -> None:
    file = tmp_path / "wandb_export.csv"
    head = ["Step", *(f"run-mistral-7b - train/loss{end}" for end in ("", "__MIN", "__MAX"))]
    rows = [[10 * (i + 1), loss, loss, loss] for i, loss in enumerate(LOSSES)]
    file.write_text("\n".join(",".join(f'"{cell}"' for cell in row) for row in [head, *rows]))
    assert first_bad(file) == 150


def test_each_run_of_a_panel_is_read(tmp_path: Path) -> None:
    file = tmp_path / "wandb_export.csv"
    rows = "".join(f"{i},{2 - i / 50},{2 - i / 50 if i < 12 else 'NaN'},{3 - i / 50}\n" for i in range(1, 20))
    file.write_text("Step,a - train/loss,b - train/loss,c - train/loss\n" + rows)
    (incident,) = diagnose(file).incidents
    assert (incident.step, "wandb_export.csv (b):13" in incident.message) == (12, True)


def test_users_9_the_steps_of_a_history_are_the_framework_s_own(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    lines = [f"{10 * (i + 1)},{loss},1.0\n" for i, loss in enumerate(LOSSES)]
    file.write_text("train/global_step,train/loss,train/grad_norm\n" + "".join(lines))
    assert first_bad(file) == 150


def mlflow_run(folder: Path, losses: list[float], at: int) -> Path:
    (folder / "metrics" / "train").mkdir(parents=True)
    (folder / "meta.yaml").write_text("run_id: x\n")
    for name, values in (("loss", losses), ("train/grad_norm", [1.0] * len(losses))):
        lines = "".join(f"1700000000000 {value} {10 * (i + 1)}\n" for i, value in enumerate(values))
        (folder / "metrics" / name).write_text(lines)
    os.utime(folder, (at, at))
    return folder


def test_fires_and_stays_quiet_a_run_of_mlflow(tmp_path: Path) -> None:
    sick = mlflow_run(tmp_path / "mlruns" / "0" / "aaa", LOSSES, 2_000)
    healthy = mlflow_run(tmp_path / "mlruns" / "0" / "bbb", LOSSES[:14], 1_000)
    assert first_bad(sick) == 150
    assert diagnose(healthy).verdict == "healthy"
    newest = diagnose(tmp_path / "mlruns")
    assert newest.incidents
    assert any("the newest of 2 logs" in one.why for one in newest.not_checked)


def trackio_file(file: Path, runs: dict[str, list[float]]) -> Path:
    with sqlite3.connect(file) as database:
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_id TEXT, timestamp TEXT, run_name TEXT, step INTEGER,"
            " metrics TEXT)"
        )
        for at, (name, losses) in enumerate(runs.items()):
            for i, loss in enumerate(losses):
                said = {"train/loss": "NaN" if math.isnan(loss) else loss, "train/global_step": 10 * (i + 1)}
                row = (name, f"2026-01-0{at + 1}T00:00:{i:02}", name, i, json.dumps(said))
                sql = "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)"
                database.execute(sql, row)
    database.close()
    return file


def test_fires_and_stays_quiet_a_database_of_trackio(tmp_path: Path) -> None:
    file = trackio_file(tmp_path / "project.db", {"old": LOSSES[:14], "new": LOSSES})
    assert first_bad(file) == 150
    why = "of 2 runs only the newest was read, new; name another as project.db:RUN (old)"
    assert any(why in one.why for one in diagnose(file).not_checked)
    assert diagnose(f"{file}:old").verdict == "healthy"
    assert not any("of 2 runs" in one.why for one in diagnose(f"{file}:old").not_checked)
    with pytest.raises(UnreadableInput, match=r"project.db: no run older in it \(expected one of new, old\)"):
        diagnose(f"{file}:older")
    assert diagnose(trackio_file(tmp_path / "b.db", {"old": LOSSES, "new": LOSSES[:14]})).verdict == "healthy"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.db", "project.db"]


def test_fires_and_stays_quiet_a_store_of_mlflow(tmp_path: Path) -> None:
    def store(name: str, runs: dict[str, list[float]]) -> Path:
        with sqlite3.connect(tmp_path / name) as database:
            database.execute("CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan)")
            for at, (run, losses) in enumerate(runs.items()):
                for step, loss in enumerate(losses, start=1):
                    lost = math.isnan(loss)
                    row = ("train/loss", 0.0 if lost else loss, 1000 * at + step, run, 10 * step, lost)
                    database.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", row)
        database.close()
        return tmp_path / name

    falling = [2.5 - n / 20 for n in range(14)]
    file = store("mlflow.db", {"old": falling, "new": [*falling, math.nan, math.nan]})
    assert first_bad(file) == 150
    assert any("of 2 runs only the newest was read, new" in one.why for one in diagnose(file).not_checked)
    assert diagnose(f"{file}:old").verdict == "healthy"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE runs (run_uuid, name)")
        database.execute("INSERT INTO runs VALUES ('old', 'bright: fox/7')")
    database.close()
    assert diagnose(f"{file}:bright: fox/7").verdict == "healthy"
    assert any("(bright: fox/7)" in one.why for one in diagnose(file).not_checked)
    assert diagnose(store("b.db", {"new": falling})).verdict == "healthy"


def test_runs_of_a_database_or_a_panel_are_put_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = trackio_file(tmp_path / "project.db", {"old": LOSSES[:14], "new": LOSSES})
    assert main(["diagnose", f"{file}:old", f"{file}:new"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "project.db:old" in out
    assert "incident" in out
    assert main(["report", f"{file}:old", f"{file}:new"]) == 0
    assert (tmp_path / "comparison.html").is_file()
    panel = tmp_path / "panel.csv"
    rows = "".join(f"{i},{2 - i / 50},{2 - i / 50 if i < 12 else 'NaN'}\n" for i in range(1, 20))
    panel.write_text("Step,a - train/loss,b - train/loss\n" + rows)
    assert diagnose(f"{panel}:a").verdict == "healthy"
    assert [one.verdict for one in diagnose(f"{panel}:a", f"{panel}:b").runs] == ["healthy", "incident"]


def test_one_run_of_a_plain_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step 1 loss 2.0\n")
    with pytest.raises(UnreadableInput, match=r"the log of one run \(expected it without :b\)"):
        diagnose(f"{tmp_path / 'a.log'}:b")


ENDLESS = (
    "CREATE VIEW metrics AS WITH RECURSIVE r(run_name, timestamp, id, step, metrics) AS "
    "(SELECT 'a', 1, 1, 1, '' UNION ALL SELECT 'a', 1, id + 1, 1, '' FROM r) SELECT * FROM r"
)


@pytest.mark.parametrize("sql", ["CREATE TABLE t (x)", ENDLESS])
def test_other_databases_are_refused_in_one_line(tmp_path: Path, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finitune.sources.logs.trackio.MOST_WORK", 2)
    with sqlite3.connect(tmp_path / "x.db") as database:
        database.execute(sql)
    database.close()
    with pytest.raises(UnreadableInput, match="no database of Trackio"):
        diagnose(tmp_path / "x.db")


def test_a_folder_without_a_log_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(FileNotFoundError, match="no recording here"):
        diagnose(tmp_path)
