import pytest

from finitune.facts import Hardware, Precision
from finitune.remedies.use_bfloat16 import propose


@pytest.mark.parametrize(
    ("source", "patch"),
    [
        ("ds.json: fp16.enabled", {"fp16.enabled": False, "bf16.enabled": True}),
        ("args.json: fp16", {"fp16": False, "bf16": True}),
        (None, {"fp16": False, "bf16": True}),
    ],
)
def test_fires_in_the_spelling_of_the_file(source, patch):
    assert propose(Precision(compute="float16", source=source)).patch == patch
    assert propose(hardware=Hardware(name="A100", bfloat16=True)) is not None


def test_stays_quiet_on_a_card_without_bfloat16():
    assert propose(Precision(compute="float16"), Hardware(name="V100", bfloat16=False)) is None
