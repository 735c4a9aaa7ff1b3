"""What the numbers of a run say of a crash: nothing, where its message is of no number."""

from __future__ import annotations

from pathlib import Path

import pytest

import finitune
from finitune.diagnosis.crashes import is_of_numbers, observed
from finitune.facts import Model
from finitune.recording import Recorder

OF_NUMBERS = [
    "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
    "ValueError: Loss is nan, stopping training",
    "_LinAlgError: linalg.cholesky: the input is not positive-definite",
    "OverflowError: math range error",
    "Exception: Current loss scale already at minimum - cannot decrease scale anymore",
]
OTHERS = [
    "RuntimeError: Trying to backward through the graph a second time",
    "RuntimeError: The size of tensor a (8) must match the size of tensor b (5)",
    "KeyError: 'info'",
    "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation",
]


@pytest.mark.parametrize("text", OF_NUMBERS)
def test_messages_of_numbers(text: str) -> None:
    assert is_of_numbers({"text": f"the program ended in {text}"})


@pytest.mark.parametrize("text", OTHERS)
def test_messages_of_none(text: str) -> None:
    assert not is_of_numbers({"text": f"the program ended in {text}"})
    assert is_of_numbers({"text": text, "batch": [{"name": "labels", "values": "3 nan"}]})
    assert is_of_numbers({"text": text, "batch": [{"learning_rate": "0+0.01j", "optimizer": "SGD"}]})


@pytest.mark.parametrize(("text", "climbs"), [(OF_NUMBERS[0], True), (OTHERS[0], False)])
def test_a_loss_that_climbed_explains_a_crash_of_numbers_alone(tmp_path: Path, text: str, climbs: bool) -> None:
    recorder = Recorder(tmp_path)
    for step in range(1, 41):
        recorder.step(step, loss=1.0 if step < 30 else 2.0 ** (step - 29), lr=1e-2, skipped=0.0)
    facts = {"optimizer": {"name": "Adam", "lr": 0.08}}
    recorder.event("incident", step=41, id=1, level="incident", symptom="crash", text=text, action="none", facts=facts)
    recorder.close()
    (incident,) = finitune.diagnose(tmp_path).incidents
    assert ("lr-too-high" in [cause.cause for cause in incident.causes]) is climbs


@pytest.mark.parametrize(
    ("model", "found"),
    [(Model(vocabulary=64), True), (Model(vocabulary=32), False), (Model(vocabulary=64, max_positions=64), False),
     (None, False)],
)  # fmt: skip
def test_an_id_is_a_token_where_the_table_is_that_of_the_tokens(model: Model | None, found: bool) -> None:
    event = {
        "symptom": "crash", "text": "the program ended in IndexError: index out of range in self",
        "batch": [{"name": "input", "id": 64, "rows": 64, "sample": 1, "position": 6}],
    }  # fmt: skip
    assert ("token-out-of-range" in observed(event, model)) is found
