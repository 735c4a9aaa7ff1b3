import pytest
from tests.causes.only import findings

from finitune.causes import gradient_checkpointing
from finitune.causes.gradient_checkpointing import weigh
from finitune.facts import Adapter, Hardware, Training

foresee = findings(gradient_checkpointing.foresee)

REENTRANT = Training(gradient_checkpointing=True, reentrant=True, source="args.json")
LORA = Adapter(kind="lora")
APPLE = Hardware(name="Apple MPS", bfloat16=True)


@pytest.mark.parametrize(
    ("adapter", "hardware", "severity"), [(LORA, None, "info"), (None, APPLE, "warning"), (LORA, APPLE, "warning")]
)
def test_fires_for_reentrant_checkpointing(adapter, hardware, severity):
    (finding,) = foresee(REENTRANT, adapter, hardware)
    assert finding.severity == severity


@pytest.mark.parametrize(
    ("training", "adapter"),
    [
        (REENTRANT, None),
        (REENTRANT, Adapter(kind="none")),
        (Training(gradient_checkpointing=True), LORA),
        (Training(gradient_checkpointing=True, reentrant=False), LORA),
        (Training(reentrant=True), LORA),
    ],
)
def test_stays_quiet(training, adapter):
    assert not list(foresee(training, adapter))


def test_weighs_against_a_run_without_it():
    assert sum(e.bits for e in weigh(Training(gradient_checkpointing=False), set())) < 0
    assert not list(weigh(Training(), set())), "nobody said so"
