"""All causes together: each comes first in its own situation, and what proves it."""

from __future__ import annotations

import pytest
from tests.causes.parts import NAN, labels, origin, rows, scanned, series, tensor, use

from finitune.diagnosis.ranking import proof_of, rank
from finitune.diagnosis.recorded import inputs_of
from finitune.facts import Facts
from finitune.series import Series

TOKENS = use({3: 1}, dict.fromkeys([*range(3), *range(4, 20)], 1), sequences=4)
SOUND = tensor("a.weight", dtype="float32", peak=0.1, rms=0.02)
DAMAGED = tensor("b.weight", dtype="float32", peak=0.1, rms=0.02, nonfinite=1)
FALLING, CLIMB = series(4.0, 3.5, 3.2, 3.0, NAN), series(4.0, 3.0, 5.0, 20.0, 90.0, NAN)
BACKWARD, OVERFLOW = origin("aten._to_copy", "backward"), origin("aten.mul", values="3 inf", peak=4e3)
ZERO_OVER_ZERO = origin("aten.nll_loss_forward", dtype="float32", values="1 nan", module="")

SITUATIONS = {
    "untrained-token-embeddings": {
        "tokens": TOKENS, "rows": rows({3: 1e-8}), "origin": BACKWARD, "loss": FALLING, "repeats": True,
        "weights": scanned(SOUND), "labels": labels(5, 5),
    },
    "fp16-activation-overflow": {
        "tokens": TOKENS, "rows": rows({}), "origin": OVERFLOW, "loss": FALLING, "repeats": True,
        "weights": scanned(SOUND), "labels": labels(5, 5),
    },
    "all-labels-ignored": {
        "tokens": TOKENS, "rows": rows({}), "origin": ZERO_OVER_ZERO, "loss": FALLING, "repeats": True,
        "weights": scanned(SOUND), "labels": labels(0, 0),
    },
    "corrupt-checkpoint": {
        "tokens": TOKENS, "rows": rows({}), "origin": origin("parameter", "parameter", "float32", tensor="b.weight"),
        "loss": series(NAN), "repeats": True, "weights": scanned(SOUND, DAMAGED), "labels": labels(5, 5),
    },
    "lr-too-high": {
        "tokens": TOKENS, "rows": rows({}), "origin": origin("aten.pow", "forward", "float32", values="9 inf"),
        "loss": CLIMB, "repeats": True, "weights": scanned(SOUND), "labels": labels(5, 5),
    },
    "hardware-fault-sdc": {
        "tokens": TOKENS, "rows": rows({}), "loss": FALLING, "repeats": False, "weights": scanned(SOUND),
        "labels": labels(5, 5),
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
    signals = {"loss": series(4.0, 3.0, NAN, 500.0, 900.0)}
    inputs = inputs_of(Facts(), {"step": 3}, None, signals)
    assert inputs["loss"].last_step == 3
    assert inputs["origin"] is None
    assert inputs["repeats"] is None


def test_the_loss_of_another_optimizer_is_not_weighed():
    """That of an actor was not finite; what climbs is the critic's."""
    signals = {name: Series() for name in ("loss", "lr", "loss_scale")}
    for one in signals.values():
        one.add(2, 1.0)
    known = [set(inputs_of(Facts(), {"step": 3, "beside": beside}, None, signals)) for beside in (False, True)]
    assert known[0] - known[1] == {"loss", "lr"}
