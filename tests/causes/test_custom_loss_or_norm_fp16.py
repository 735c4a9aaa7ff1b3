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


BY_ZERO = Origin(module=None, op="aten.reciprocal", phase="backward", dtype="float16", peak=0.0)


def test_fires_for_a_division_of_gradients_by_a_norm_that_is_zero():
    assert bits(BY_ZERO) == bits(replace(BY_ZERO, op="aten.div", peak=3.0, divisor="1 of 1 elements are 0")) == 9
    assert bits(replace(BY_ZERO, dtype="float32")) == bits(replace(BY_ZERO, peak=0.1)) == 0


@pytest.mark.parametrize(
    "other",
    [
        replace(SUM, module="model.layers.3.mlp"), replace(SUM, dtype="float32"), replace(SUM, dtype="bfloat16"),
        replace(SUM, phase="backward"), replace(SUM, op="aten.div"),
    ],
)  # fmt: skip
def test_stays_quiet(other):
    assert bits(other) == 0
