import math

import pytest

from finitune.causes.lr_too_high import foresee, weigh
from finitune.facts import Adapter, Optimizer, Training
from finitune.series import Series


@pytest.mark.parametrize(
    ("lr", "lora", "severity"),
    [
        (2e-3, False, "warning"), (2e-2, False, "error"), (5e-3, True, "warning"), (1e-1, True, "error"),
        (5e-3, None, "warning"), (1.0, None, "error"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", [None, "adamw_torch", "AdamW", "paged_adamw_8bit", "FusedAdam", "adamw_bnb_8bit"])
def test_fires_by_size_and_by_what_is_trained(lr, lora, severity, name):
    (finding,) = foresee(Optimizer(lr=lr, lora=lora, name=name, source="a.json"))
    assert finding.severity == severity
    assert finding.evidence["lr"] == lr
    assert finding.where.file == "a.json"
    assert f"{lr:g}" in finding.message


@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer(lr=2e-5, lora=False), Optimizer(lr=1e-3, lora=False), Optimizer(lr=2e-4, lora=True),
        Optimizer(lr=2e-3, lora=True),
        Optimizer(lr=2e-3), Optimizer(), Optimizer(lr=0.0),
        Optimizer(lr=0.1, name="sgd"), Optimizer(lr=30.0, name="sgd", clip=0.25),
        Optimizer(lr=1.0, name="prodigy"), Optimizer(lr=1e-2, name="adafactor"),
        Optimizer(lr=1e-2, name="galore_adamw"), Optimizer(lr=2e-2, name="Muon"),
        Optimizer(lr=2e-2, name="schedule_free_adamw"),
        Optimizer(lr=1e-2, name="apollo_adamw"),
    ],
)  # fmt: skip
def test_stays_quiet(optimizer):
    assert not list(foresee(optimizer))


@pytest.mark.parametrize(("lr", "clip"), [(30.0, None), (30.0, 0.0), (100.0, 1.0), (100.0, 0.25)])
def test_fires_for_a_step_of_sgd_that_is_longer_than_any_recipe(lr, clip):
    (finding,) = foresee(Optimizer(lr=lr, clip=clip, name="sgd"))
    assert finding.severity == "error"
    assert "SGD" in finding.message


def test_a_row_that_stands_for_several_steps_is_not_too_early():
    bits = {
        steps: sum(term.bits for term in weigh(loss=Series(steps, [1e9, float("nan")]))) for steps in ((1, 2), (5, 10))
    }
    assert bits == {(1, 2): -6, (5, 10): 0}


@pytest.mark.parametrize(("kind", "found"), [("prompt_tuning", 0), ("ia3", 0), ("lora", 1), ("none", 1), (None, 1)])
def test_soft_prompts_and_scales_have_rates_of_their_own(kind, found):
    assert len(list(foresee(Optimizer(lr=3e-2, lora=True), Adapter(kind=kind)))) == found


@pytest.mark.parametrize(("lr", "lora"), [(2e-4, False), (1e-3, True)])
def test_fires_for_a_high_rate_that_is_said_to_have_no_warm_up(lr, lora):
    (finding,) = foresee(Optimizer(lr=lr, lora=lora, warmup_steps=0))
    assert finding.severity == "warning"
    assert "without warm-up" in finding.message


@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer(lr=2e-5, lora=False, warmup_steps=0),
        Optimizer(lr=2e-4, lora=True, warmup_steps=0),
        Optimizer(lr=2e-4, lora=False, warmup_steps=0, warmup_ratio=0.1),
        Optimizer(lr=2e-4, lora=False),
    ],
)
def test_stays_quiet_about_the_warm_up(optimizer):
    assert not list(foresee(optimizer))


def bits(*losses: float) -> float:
    return sum(evidence.bits for evidence in weigh(Series(range(len(losses)), losses)))


def test_fires_after_a_loss_that_climbed():
    assert bits(2.0, 1.9, 2.1, 2.0, 3.0, 9.0) == 6
    assert bits(2.0, 1.9, 2.1, 2.0, 3.0, 5.0) == 3
    assert bits(4.0, 3.0, 2.0) < 0
    rows = Series([10, 20, 30], [2.0, 3.0, 9.0])  # a mean over ten steps each
    assert sum(evidence.bits for evidence in weigh(rows)) == 6


def test_stays_quiet_where_batches_differ_as_much():
    assert bits(3.9, 22.7, 3.7, 11.6, 8.9, 9.9) == 0
    assert bits(4.4, 16.7, 8.7) == 0


def test_a_measured_update_says_more_than_a_recipe():
    flat = Series(range(6), [2.0, 1.9, 2.1, 2.0, 1.8, 1.9])
    at = lambda ratio: sum(e.bits for e in weigh(flat, Optimizer(lr=0.02), update_ratio=Series([1], [ratio])))  # noqa: E731
    assert at(0.2) > at(0.01)
    assert at(0.01) < sum(e.bits for e in weigh(flat, Optimizer(lr=0.02)))


@pytest.mark.parametrize("losses", [(-0.1, -5.6e-6, 8.4e-6), (0.0, 4e-9, 1.6e-5, 3e-3), (0.4, -0.2, 0.9)])
def test_stays_quiet_about_the_loss_of_policy_gradients(losses):
    """As GRPO logs it in a sound run: no multiple of a value about zero is a climb."""
    assert bits(*losses) == 0


def test_fires_where_one_step_is_enough():
    """At a rate of 3 each weight moves by 150 times its size: no time to climb."""
    few = Series([1, 2], [6.27, float("nan")])
    assert sum(term.bits for term in weigh(few, Optimizer(lr=3.0))) > 5
    assert sum(term.bits for term in weigh(few, Optimizer(lr=3.0, name="prodigy"))) < 0
    assert sum(term.bits for term in weigh(few, Optimizer(lr=2e-5))) < 0


def test_an_update_that_was_measured_at_another_rate_counts_at_the_rate_of_now():
    flat, measured = Series(range(6), [2.0, 1.9, 2.1, 2.0, 1.8, 1.9]), Series([1], [0.01])
    at = lambda rate: sum(  # noqa: E731
        e.bits for e in weigh(flat, update_ratio=measured, lr=Series(range(6), [1e-3, 1e-3, 1e-3, 1e-3, rate, rate]))
    )
    assert at(1.0) > at(1e-3)


def test_no_update_had_been_taken_at_the_first_step():
    first = {"step": 1, "last_good": 0}
    high = Optimizer(name="AdamW", lr=0.5)
    terms = list(weigh(Series([1], [math.inf]), high, incident=first))
    assert sum(term.bits for term in terms) < -5
    assert sum(term.bits for term in weigh(Series([1, 2], [2.0, math.inf]), high, incident={"step": 2})) > 0


def test_a_loss_that_was_astronomical_and_came_back_has_ruined_the_weights():
    ruined = [189.0, 4.7e4, 7.7e5, 1.1e19, 8e25, 4e24, 4.7e35, 2e34, 127.0, 13.9, 14.2]
    assert any("the weights with it" in term.text for term in weigh(Series(range(1, 12), ruined)))
    spike = [189.0, 150.0, 140.0, 1.1e19, 120.0, 110.0, 100.0, 90.0, 80.0, 70.0, 60.0]
    assert not any("the weights with it" in term.text for term in weigh(Series(range(1, 12), spike)))


def test_a_loop_that_names_no_optimizer_may_train_with_sgd():
    optimizer, own = Optimizer(lr=0.1), Training(framework="lightning")
    assert [one.severity for one in foresee(optimizer, training=own)] == ["warning"]
    assert [one.severity for one in foresee(optimizer, training=Training(framework="transformers"))] == ["error"]
    assert [one.severity for one in foresee(Optimizer(lr=20.0), training=own)] == ["error"]
