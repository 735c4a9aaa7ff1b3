"""What was measured of a run says more than the recipe that it was started with."""

from tests.causes.parts import INF, NAN, series
from tests.causes.rows import bits, terms

from finitune.facts import Optimizer
from finitune.series import Series

FLAT = Series(range(6), [2.0, 1.9, 2.1, 2.0, 1.8, 1.9])
CLIMB = series(4.0, 3.0, 5.0, 20.0, 90.0, NAN)


def weighed(**inputs):
    return bits("lr-too-high", **inputs)


def test_a_measured_update_says_more_than_a_recipe():
    by_recipe = {"loss": FLAT, "optimizer": Optimizer(lr=0.02)}
    large, small = (weighed(**by_recipe, update_ratio=Series([1], [ratio])) for ratio in (0.2, 0.01))
    assert large > small
    assert small < weighed(**by_recipe)


def test_an_update_that_was_measured_at_another_rate_counts_at_the_rate_of_now():
    then = {"loss": FLAT, "update_ratio": Series([1], [0.01])}
    rose, stayed = (weighed(**then, lr=Series(range(6), [1e-3] * 4 + [rate] * 2)) for rate in (1.0, 1e-3))
    assert rose > stayed


def test_an_update_of_the_first_steps_is_one_that_was_measured():
    """The rate of step 1, at which the usual ones begin, is 0 where it warms up."""
    known = {"loss": CLIMB, "lr": series(0, *[0.1] * 5), "update_ratio": Series([1], [0.0])}
    large, small = (weighed(**known, first_update_ratio=Series([2, 4], [ratio] * 2)) for ratio in (0.2, 0.001))
    assert large > weighed(**known) > small


def test_one_update_that_was_measured_as_many_times_the_weights_is_enough():
    first = {"loss": series(1.06), "optimizer": Optimizer(name="Adam", lr=1e12), "incident": {"step": 2}}
    ruined, small = (weighed(**first, update_ratio=Series([1], [ratio])) for ratio in (1e13, 0.01))
    assert small < 0 < ruined


def test_a_gradient_norm_that_rose_and_a_rate_beyond_every_recipe_say_more_than_the_loss_alone():
    assert weighed(loss=CLIMB, grad_norm=series(1, 1, 1, 8, 30, 200, INF)) > weighed(loss=CLIMB)
    wild, usual = (weighed(loss=CLIMB, optimizer=Optimizer(name="AdamW", lr=lr, lora=False)) for lr in (0.1, 2e-5))
    assert wild > usual


def test_a_loss_that_was_astronomical_and_came_back_has_ruined_the_weights():
    ruined = [189.0, 4.7e4, 7.7e5, 1.1e19, 8e25, 4e24, 4.7e35, 2e34, 127.0, 13.9, 14.2]
    assert any("the weights with it" in term.text for term in terms("lr-too-high", loss=series(*ruined)))
    spike = [189.0, 150.0, 140.0, 1.1e19, 120.0, 110.0, 100.0, 90.0, 80.0, 70.0, 60.0]
    assert not any("the weights with it" in term.text for term in terms("lr-too-high", loss=series(*spike)))


def test_the_loss_of_a_batch_whose_gradient_is_not_finite_is_no_climb():
    losses = series(5.0, 6.3, 3.3, 5.9, 3.1, 1.6, 0.8, 2.8, 1.2, 0.45, 0.73, 1.8, 1290.0)
    incident = {"step": 13, "symptom": "nonfinite-gradient"}
    assert weighed(loss=losses, incident=incident) < weighed(loss=losses) < weighed(loss=CLIMB)


def test_a_loss_of_both_signs_that_has_fallen_to_its_end_had_not_climbed():
    falls = [0.8 - 0.1 * n for n in range(14)]
    rate = Optimizer(name="Adam", lr=0.12, lora=False)
    fell, rose = (weighed(loss=series(*losses), optimizer=rate) for losses in (falls, falls[::-1]))
    assert fell <= 0 < rose
