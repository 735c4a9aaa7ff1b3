"""What each cause makes of evidence from a bad step: hand-made inputs, the sign of the sum of its bits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from finitune.causes import (
    all_labels_ignored,
    corrupt_checkpoint,
    fp16_activation_overflow,
    hardware_fault_sdc,
    lr_too_high,
    untrained_token_embeddings,
)
from finitune.diagnosis.ranking import proof_of, rank
from finitune.diagnosis.recorded import inputs_of
from finitune.facts import EmbeddingRows, Facts, Labels, Optimizer, TensorScan, TokenUse, Weights
from finitune.finding import Origin
from finitune.series import Series


def bits(chapter, **inputs) -> float:
    evidence = list(chapter.weigh(**inputs))
    assert evidence, "it says something for every input"
    assert all(term.text and math.isfinite(term.bits) for term in evidence)
    return sum(term.bits for term in evidence)


def series(*values):
    return Series(range(1, len(values) + 1), values)


def origin(op="aten.mm", phase="forward", dtype="float32", module="model.layers.1.mlp.down_proj", **more):
    return Origin(module=module, op=op, phase=phase, dtype=dtype, **more)


SOUND = TensorScan(name="a.weight", dtype="float32", shape=[4, 4], nonfinite=0, peak=0.1, rms=0.02)
FALLING = series(4.0, 3.5, 3.2, 3.0, math.nan)


# untrained-token-embeddings


def rows(**sizes):
    rms = np.array([sizes.get(f"id{i}", 0.02) for i in range(20)])
    return EmbeddingRows(
        tensor="embed.weight", ids=np.arange(20), rms=rms, median_rms=0.02, lost_in_cast=np.zeros(20), dtype="float16"
    )


def tokens(first=(3,)):
    ids = np.arange(20)
    counts = np.ones(20, dtype=np.int64)
    return TokenUse(ids=ids, counts=counts, first=np.array([int(i in first) for i in ids]), sequences=4)


BACKWARD = origin("aten._to_copy", "backward", "float16")


def test_untrained_rows_fires_for_a_short_row_at_position_0_and_an_overflow_in_the_backward():
    assert bits(untrained_token_embeddings, tokens=tokens(), rows=rows(id3=1e-8), origin=BACKWARD) >= 8
    assert bits(untrained_token_embeddings, tokens=tokens(), rows=rows(id3=0.0)) >= 5


def test_untrained_rows_fires_less_where_the_row_begins_no_sequence_or_the_forward_failed():
    best = bits(untrained_token_embeddings, tokens=tokens(), rows=rows(id3=1e-8), origin=BACKWARD)
    later = bits(untrained_token_embeddings, tokens=tokens(first=(5,)), rows=rows(id3=1e-8), origin=BACKWARD)
    forward = bits(untrained_token_embeddings, tokens=tokens(), rows=rows(id3=1e-8), origin=origin())
    assert later < best
    assert forward < best


def test_untrained_rows_stays_quiet_where_every_row_is_of_normal_length():
    assert bits(untrained_token_embeddings, tokens=tokens(), rows=rows(), origin=BACKWARD) < 0
    assert bits(untrained_token_embeddings, tokens=tokens(), rows=rows(id3=0.002), origin=BACKWARD) < 0


# fp16-activation-overflow


OVERFLOW = origin("aten.mul", "forward", "float16", values="3 inf", peak=4e3)


def test_fp16_fires_for_an_infinity_made_in_float16_in_the_forward():
    assert bits(fp16_activation_overflow, origin=OVERFLOW, loss=FALLING) >= 5
    assert bits(fp16_activation_overflow, origin=OVERFLOW) >= 5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_fp16_stays_quiet_in_a_wider_dtype(dtype):
    assert bits(fp16_activation_overflow, origin=origin(dtype=dtype, values="3 inf")) < 0


@pytest.mark.parametrize("phase", ["parameter", "input"])
def test_fp16_stays_quiet_where_nothing_was_computed(phase):
    assert bits(fp16_activation_overflow, origin=origin(phase, phase, "float16")) < 0


def test_fp16_stays_quiet_about_the_backward_and_about_a_loss_that_had_climbed():
    assert bits(fp16_activation_overflow, origin=BACKWARD) < 0
    climbed = series(4.0, 3.0, 9.0, 60.0, math.nan)
    assert bits(fp16_activation_overflow, origin=OVERFLOW, loss=climbed) < bits(
        fp16_activation_overflow, origin=OVERFLOW, loss=FALLING
    )


# all-labels-ignored


def supervised(*counts):
    return Labels(supervised=np.array(counts, dtype=np.int64))


ZERO_OVER_ZERO = origin("aten.nll_loss_forward", values="1 nan", module="")


def test_labels_fires_where_no_row_has_a_target():
    assert bits(all_labels_ignored, labels=supervised(0, 0, 0), origin=ZERO_OVER_ZERO) >= 9
    assert bits(all_labels_ignored, labels=supervised(0)) >= 5


def test_labels_fires_less_where_something_else_went_bad_first():
    assert bits(all_labels_ignored, labels=supervised(0, 0), origin=OVERFLOW) < bits(
        all_labels_ignored, labels=supervised(0, 0), origin=ZERO_OVER_ZERO
    )


def test_labels_stays_quiet_where_one_token_is_supervised():
    assert bits(all_labels_ignored, labels=supervised(0, 0, 1), origin=ZERO_OVER_ZERO) < 0


# corrupt-checkpoint


def weights(*scans):
    return Weights(tensors=[SOUND, *scans])


NAN_WEIGHT = TensorScan(name="b.weight", dtype="float32", shape=[4, 4], nonfinite=1, peak=0.1, rms=0.02)
HUGE_WEIGHT = TensorScan(name="b.weight", dtype="float32", shape=[64, 64], nonfinite=0, peak=1e30, rms=1e28)


def test_checkpoint_fires_for_a_damaged_weight_in_the_first_step():
    parameter = origin("parameter", "parameter", tensor="b.weight")
    assert bits(corrupt_checkpoint, weights=weights(NAN_WEIGHT), origin=parameter, loss=series(math.nan)) >= 8
    huge = TensorScan(name="b.weight", dtype="float32", shape=[1024, 1024], nonfinite=0, peak=1e30, rms=1e26)
    assert bits(corrupt_checkpoint, weights=weights(huge), origin=origin(), loss=series(math.nan)) >= 5


def test_checkpoint_fires_less_after_sound_steps():
    first = bits(corrupt_checkpoint, weights=weights(NAN_WEIGHT), loss=series(math.nan))
    assert bits(corrupt_checkpoint, weights=weights(NAN_WEIGHT), loss=FALLING) < first


def test_checkpoint_stays_quiet_where_every_weight_is_plausible():
    assert bits(corrupt_checkpoint, weights=weights(), origin=OVERFLOW, loss=series(math.nan)) < 0
    spread = TensorScan(name="b.weight", dtype="float32", shape=[64, 64], nonfinite=0, peak=0.9, rms=0.02)
    assert bits(corrupt_checkpoint, weights=weights(spread), loss=series(math.nan)) < 0


# lr-too-high


CLIMB = series(4.0, 3.0, 5.0, 20.0, 90.0, math.nan)


def test_lr_fires_where_the_loss_had_climbed():
    assert bits(lr_too_high, loss=CLIMB) >= 3
    assert bits(lr_too_high, loss=CLIMB, grad_norm=series(1, 1, 1, 8, 30, 200, math.inf)) > bits(
        lr_too_high, loss=CLIMB
    )


def test_lr_fires_more_for_a_rate_beyond_every_recipe():
    wild, usual = Optimizer(name="AdamW", lr=0.1, lora=False), Optimizer(name="AdamW", lr=2e-5, lora=False)
    assert bits(lr_too_high, loss=CLIMB, optimizer=wild) > bits(lr_too_high, loss=CLIMB, optimizer=usual)


def test_lr_stays_quiet_where_the_loss_fell_and_at_the_first_step():
    assert bits(lr_too_high, loss=FALLING) < 0
    assert bits(lr_too_high, loss=series(math.nan)) < 0
    assert bits(lr_too_high, loss=series(4.0, math.nan)) < 0


# hardware-fault-sdc


def test_hardware_fires_where_the_step_does_not_repeat():
    one, many = {"bad": ["w"], "tensors": 40}, {"bad": ["w", "v"], "tensors": 40}
    assert bits(hardware_fault_sdc, repeats=False, incident=one) > bits(
        hardware_fault_sdc, repeats=False, incident=many
    )
    assert bits(hardware_fault_sdc, repeats=False, incident=many) > 5


def test_hardware_fires_more_where_nothing_announces_the_step():
    one = {"repeats": False, "incident": {"bad": ["w", "v"], "tensors": 40}}
    assert bits(hardware_fault_sdc, **one, loss=FALLING) > bits(hardware_fault_sdc, **one)
    assert bits(hardware_fault_sdc, **one, loss=CLIMB) == bits(hardware_fault_sdc, **one)


def test_hardware_stays_quiet_where_it_does():
    assert bits(hardware_fault_sdc, repeats=True, incident={"bad": ["w"], "tensors": 40}) < 0


# All together


SITUATIONS = {
    "untrained-token-embeddings": {
        "tokens": tokens(), "rows": rows(id3=1e-8), "origin": BACKWARD, "loss": FALLING, "repeats": True,
        "weights": weights(), "labels": supervised(5, 5),
    },
    "fp16-activation-overflow": {
        "tokens": tokens(), "rows": rows(), "origin": OVERFLOW, "loss": FALLING, "repeats": True,
        "weights": weights(), "labels": supervised(5, 5),
    },
    "all-labels-ignored": {
        "tokens": tokens(), "rows": rows(), "origin": ZERO_OVER_ZERO, "loss": FALLING, "repeats": True,
        "weights": weights(), "labels": supervised(0, 0),
    },
    "corrupt-checkpoint": {
        "tokens": tokens(), "rows": rows(), "origin": origin("parameter", "parameter", tensor="b.weight"),
        "loss": series(math.nan), "repeats": True, "weights": weights(NAN_WEIGHT), "labels": supervised(5, 5),
    },
    "lr-too-high": {
        "tokens": tokens(), "rows": rows(), "origin": origin("aten.pow", "forward", "float32", values="9 inf"),
        "loss": CLIMB, "repeats": True, "weights": weights(), "labels": supervised(5, 5),
    },
    "hardware-fault-sdc": {
        "tokens": tokens(), "rows": rows(), "loss": FALLING, "repeats": False, "weights": weights(),
        "labels": supervised(5, 5),
    },
}  # fmt: skip


@pytest.mark.parametrize("cause", SITUATIONS)
def test_each_cause_comes_first_in_its_own_situation_and_no_other_has_more_for_than_against(cause):
    inputs = {"incident": {"bad": ["w"], "tensors": 40}, **SITUATIONS[cause]}
    ranked = rank(inputs)
    assert ranked[0].cause == cause
    assert ranked[0].bits > 0
    known = [one for one in ranked[1:] if one.cause in SITUATIONS]
    assert all(one.bits < ranked[0].bits - 3 for one in known)


@pytest.mark.parametrize("cause", SITUATIONS)
def test_the_bits_are_the_sum_of_the_terms_that_are_shown(cause):
    for one in rank({"incident": {}, **SITUATIONS[cause]}):
        assert one.bits == pytest.approx(sum(term.bits for term in one.evidence))
        assert one.confidence is None, "no number that was not measured"


def test_a_cause_whose_inputs_are_missing_keeps_its_prior_and_is_never_proved():
    """A missing input means that it was not asked."""
    arms = [
        {"cause": "untrained-token-embeddings", "arm": "repair-rows=6", "expect": "finite", "result": "finite"},
        {"cause": "untrained-token-embeddings", "arm": "repair-rows=2", "expect": "non-finite", "result": "non-finite",
         "placebo": True},
    ]  # fmt: skip
    one = next(c for c in rank({"incident": {}, "loss": FALLING}, arms) if c.cause == "untrained-token-embeddings")
    assert one.not_asked == ("tokens", "rows")
    assert not one.proved


def test_proof_needs_a_cure_and_a_placebo_that_failed():
    remedy = {"arm": "float32", "expect": "finite", "result": "finite"}
    placebo = {"arm": "again", "expect": "non-finite", "result": "non-finite", "placebo": True}
    assert proof_of([remedy, placebo]) == ("float32", "again")
    assert not proof_of([remedy])
    assert not proof_of([placebo])
    assert not proof_of([remedy, {**placebo, "result": "finite"}])
    assert not proof_of([{**remedy, "result": "non-finite"}, placebo])
    assert not proof_of([remedy, placebo, {**placebo, "result": "finite"}])
    assert not proof_of([])


def test_an_experiment_that_fails_outweighs_circumstances():
    inputs = {"incident": {}, **SITUATIONS["fp16-activation-overflow"]}
    failed = [{"cause": "fp16-activation-overflow", "arm": "float32", "expect": "finite", "result": "non-finite"}]
    before = next(c for c in rank(inputs) if c.cause == "fp16-activation-overflow")
    after = next(c for c in rank(inputs, failed) if c.cause == "fp16-activation-overflow")
    assert after.bits < min(before.bits - 5, 2)


def test_weigh_reads_only_what_was_known_at_the_step():
    signals = {"loss": series(4.0, 3.0, math.nan, 500.0, 900.0)}
    inputs = inputs_of(Facts(), {"step": 3}, None, signals)
    assert inputs["loss"].last_step == 3
    assert inputs["origin"] is None
    assert inputs["repeats"] is None


def test_the_loss_of_another_optimizer_is_not_weighed():
    """That of an actor was not finite; what climbs is the critic's."""
    signals = {name: Series() for name in ("loss", "lr", "loss_scale")}
    for series in signals.values():
        series.add(2, 1.0)
    known = [set(inputs_of(Facts(), {"step": 3, "beside": beside}, None, signals)) for beside in (False, True)]
    assert known[0] - known[1] == {"loss", "lr"}
