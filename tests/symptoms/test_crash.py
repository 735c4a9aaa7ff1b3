from __future__ import annotations

from pathlib import Path

from finitune.diagnosis.recorded import diagnose
from finitune.recording import Recorder

FACTS = [{"token": 300, "vocabulary": 256, "sample": 2, "position": 7, "name": "input 0"}]


def crashed(place: Path, text: str, **fields: object) -> Path:
    recorder = Recorder(place)
    for step in range(1, 7):
        recorder.step(step, loss=1.0, skipped=0.0)
    recorder.event("incident", step=7, id=1, level="incident", symptom="crash", text=text, action="none", **fields)
    recorder.close()
    return place


def test_fires_with_its_frame_its_batch_and_the_cause_that_its_message_speaks_for(tmp_path: Path) -> None:
    text = "the program ended in IndexError: index out of range in self"
    diagnosis = diagnose(crashed(tmp_path / "run", text, frames=["train.py:16: x = embed(ids)"], batch=FACTS))
    (incident,) = diagnosis.incidents
    assert (diagnosis.verdict, diagnosis.steps, incident.step, incident.symptom) == ("incident", 6, 7, "crash")
    assert incident.seen[0] == "raised at train.py:16: x = embed(ids)"
    assert "token 300 of a vocabulary of 256, in sample 2 at position 7" in incident.seen[1]
    assert incident.causes[0].cause == "tokenizer-vocab-mismatch"


def test_stays_quiet_about_causes_where_the_message_speaks_for_none(tmp_path: Path) -> None:
    (incident,) = diagnose(
        crashed(tmp_path / "run", "the program ended in ZeroDivisionError: division by zero")
    ).incidents
    assert not incident.causes
