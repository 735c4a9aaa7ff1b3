import math

import pytest

from finitune.series import Series
from finitune.symptoms.loss_scale_collapse import WINDOW, see, steps_left


def seen(scales, skipped):
    steps = range(1, len(scales) + 1)
    return see(Series(steps, [float(s) for s in skipped]), Series(steps, scales))


def falling(steps, first=2.0**16):
    return [first / 2**i for i in range(steps)]


def test_fires_when_every_step_is_skipped_with_what_is_left():
    sighting = seen(falling(8), [1] * 8)
    assert sighting.step == 8
    assert sighting.numbers == {"loss_scale": 512.0, "skipped": 8.0, "halvings_left": 9.0}
    assert "8 skipped steps of 8" in sighting.text


@pytest.mark.parametrize("scale", [16.0, 4.0, 1.0, 0.5, 0.0])
def test_fires_at_an_exhausted_scale_when_half_the_steps_are_skipped(scale):
    sighting = seen([scale] * 8, [1, 0] * 3 + [0, 1])
    assert sighting.numbers["halvings_left"] == {16.0: 4.0, 4.0: 2.0}.get(scale, 0.0)


def test_fires_again_on_every_further_skipped_step():
    scales = falling(17)
    fired = [n for n in range(1, 18) if seen(scales[:n], [1] * n)]
    assert fired == list(range(WINDOW, 18))


@pytest.mark.parametrize("length", range(WINDOW))
def test_stays_quiet_while_a_scale_settles(length):
    assert seen(falling(length), [1] * length) is None


def test_stays_quiet_about_a_scale_that_settled_and_about_one_loss_in_a_thousand():
    settled = [*falling(7, 2.0**24), *[2.0**17] * 5]
    assert seen(settled, [1] * 7 + [0] * 5) is None
    assert seen([2.0**17] * 2000 + [2.0**18], [0] * 2000 + [1]) is None
    assert seen([8.0] * 20, [0] * 20) is None, "low, and yet it holds"


def test_stays_quiet_once_a_step_is_taken():
    assert seen([*falling(9)], [1] * 8 + [0]) is None


def test_stays_quiet_about_skipped_steps_with_sound_ones_between_at_a_sound_scale():
    assert seen([2.0**13] * 16, [1, 0] * 7 + [1, 1]) is None


@pytest.mark.parametrize(
    ("scales", "left"),
    [
        ([2.0**16, 2.0**16, 2.0**15], 15),  # the first overflow is taken by the hysteresis
        (falling(8), 9),
        ([2.0**16, 2.0**15, 2.0**15, 2.0**14, 2.0**14], 28),  # 2 halvings in 4 steps
        ([4.0, 2.0, 1.0], None),
        ([2.0**13] * 8, None),
        ([2.0**10, 2.0**11, 2.0**12], None),
        ([2.0**16], None),
        ([2.0**16, float("inf")], None),
        ([2.0, 0.0], None),
    ],
)
def test_forecast_is_the_rate_prolonged(scales, left):
    assert steps_left(Series(range(len(scales)), scales)) == left


def test_forecast_names_the_step_at_which_the_scale_is_at_its_minimum():
    scales = [2.0**16, *falling(17)]
    for done in range(3, 17):
        left = steps_left(Series(range(done), scales[:done]))
        assert scales[done - 1 + left] == 1.0


def test_fires_with_the_forecast_in_words():
    assert seen(falling(8), [1] * 8).text.endswith("at this rate at its minimum in 9 steps")
    assert seen([16.0] * 8, [1, 0] * 3 + [0, 1]).text.endswith("4 halvings from 1")


def test_fires_as_an_incident_only_at_a_scale_of_one_or_less():
    """No scale helps where the gradients themselves overflow."""
    sound = [0] * 200
    assert seen([2.0**12] * 200 + falling(8, 2.0**12), sound + [1] * 8).level == "suspicion"
    assert seen([2.0**12] * 200 + falling(10, 2.0**3), sound + [1] * 10).level == "incident"


@pytest.mark.parametrize("first", [2.0**16, 2.0**32, 2.0**40])
def test_stays_below_a_suspicion_while_a_run_finds_its_scale(first):
    """Loss summed over tokens: it may settle far below the usual scales, after steps that were all skipped."""
    steps = int(math.log2(first)) - 5
    levels = {one.level for n in range(1, steps + 1) if (one := seen(falling(n, first), [1] * n))}
    assert levels == {"note"}
    scales = falling(steps, first)
    assert seen([*scales, scales[-1]], [1] * steps + [0]) is None


def test_fires_on_a_scale_that_falls_steadily_between_sound_steps():
    scales = [2.0 ** (16 - step // 20) for step in range(200)]
    skipped = [float(step % 20 == 0) for step in range(1, 201)]
    assert seen(scales, skipped).level == "suspicion"
    assert seen([2.0**16] * 200, skipped) is None, "a scale that grows again after each of them"
