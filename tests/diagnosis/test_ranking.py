"""What the outcomes of experiments count for."""

from __future__ import annotations

import pytest

from finitune.diagnosis.ranking import rank
from finitune.finding import Origin

BAD_INPUT = Origin(
    module=None, op="input", phase="input", dtype="float32", values="1 nan", rows=[3], shape=[8, 2], tensor="input 0"
)  # fmt: skip
BATCH = {"incident": {}, "origin": BAD_INPUT}
OVERFLOW = Origin(module="1", op="aten.mm", phase="forward", dtype="float16", values="4 inf", peak=3e4)
HALF = {"incident": {}, "origin": OVERFLOW}


def arm(name: str, cause: str, result: str, *, placebo: bool = False) -> dict[str, object]:
    expect = "non-finite" if placebo else "finite"
    return {"arm": name, "cause": cause, "expect": expect, "result": result, "placebo": placebo, "optional": False}


def of(cause, inputs, experiments):
    return next(one for one in rank(inputs, experiments) if one.cause == cause)


@pytest.mark.parametrize("result", ["finite", "diverged", "non-finite"])
def test_a_sample_that_is_bad_by_itself(result):
    ran = [
        arm("leave-rows-out=3", "bad-data-sample", result),
        arm("leave-rows-out=0", "bad-data-sample", "non-finite", placebo=True),
    ]
    found = of("bad-data-sample", BATCH, ran)
    alone = of("bad-data-sample", BATCH, [])
    assert found.proved == (result == "finite")
    assert bool(found.remedies) == (result != "non-finite")
    if result == "diverged":  # without the sample the loss is that of other samples
        assert found.bits >= alone.bits
    if result == "non-finite":
        assert found.bits < alone.bits


def test_a_cast_that_gives_a_huge_finite_loss_is_a_sign_against_but_refutes_nothing():
    ran = [arm("float32", "fp16-activation-overflow", "diverged")]
    alone = of("fp16-activation-overflow", HALF, [])
    found = of("fp16-activation-overflow", HALF, ran)
    refuted = of("fp16-activation-overflow", HALF, [arm("float32", "fp16-activation-overflow", "non-finite")])
    assert alone.bits > found.bits > refuted.bits
    assert not found.proved
    assert found.remedies
    assert not refuted.remedies
    assert any("proves nothing" in term.text for term in found.evidence)


def test_a_placebo_says_nothing_where_no_experiment_cured_and_an_optional_one_that_fails_says_little():
    failed = {**arm("update-times=0.01", "lr-too-high", "non-finite"), "optional": True}
    placebo = arm("update-times=1", "lr-too-high", "non-finite", placebo=True)
    alone, tried, only_placebo = (of("lr-too-high", HALF, ran) for ran in ([], [failed, placebo], [placebo]))
    assert tried.bits < alone.bits == only_placebo.bits
    assert tried.bits > of("lr-too-high", HALF, [{**failed, "optional": False}, placebo]).bits
