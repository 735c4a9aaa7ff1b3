"""A sum or a square of the program's own code, in float16."""

from dataclasses import replace

import pytest

from finitune.causes.custom_loss_or_norm_fp16 import weigh
from finitune.finding import Origin

SUM = Origin(module=None, op="aten.sum", phase="forward", dtype="float16", peak=44992.0)


def bits(origin: Origin) -> float:
    return sum(one.bits for one in weigh(origin))


def test_fires_for_a_sum_outside_of_the_model():
    assert bits(SUM) == 9
    assert bits(replace(SUM, peak=None)) == 6


@pytest.mark.parametrize(
    "other",
    [
        replace(SUM, module="model.layers.3.mlp"), replace(SUM, dtype="float32"), replace(SUM, dtype="bfloat16"),
        replace(SUM, phase="backward"), replace(SUM, op="aten.div"),
    ],
)  # fmt: skip
def test_stays_quiet(other):
    assert bits(other) == 0
