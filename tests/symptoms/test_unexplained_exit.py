from __future__ import annotations

from pathlib import Path

import pytest

from finitune.diagnosis.recorded import diagnose
from finitune.recording import Recorder


def ended(place: Path, *, code: int, signal: str | None = None, event: str = "end", **fields: object) -> str:
    recorder = Recorder(place)
    for step in range(1, 4):
        recorder.step(step, loss=1.0, skipped=0.0)
    recorder.event(event, step=3, **fields)
    recorder.event("exit", step=3, code=code, signal=signal)
    recorder.close()
    return diagnose(place).verdict


@pytest.mark.parametrize("code", [1, 2, 120])
def test_fires_for_a_code_that_nothing_explains(tmp_path: Path, code: int) -> None:
    assert ended(tmp_path / "run", code=code) == "suspect"


def test_stays_quiet_where_the_run_ended_well_or_somebody_ended_it(tmp_path: Path) -> None:
    assert ended(tmp_path / "well", code=0) == "healthy"
    assert ended(tmp_path / "interrupted", code=1, event="note", note="interrupted") == "healthy"
    assert ended(tmp_path / "terminated", code=-15, signal="SIGTERM") == "healthy"
    assert ended(tmp_path / "stopped", code=3, event="stop") == "healthy"
