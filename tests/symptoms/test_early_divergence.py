"""A log that leaves its first row at once; not a low first draw, a short log, or one that comes back."""

from __future__ import annotations

import numpy as np
import pytest

from finitune.series import Series
from finitune.symptoms.early_divergence import review


def left_at_once(rows: int = 30, *, back: float = 1.2) -> tuple[Series, Series]:
    """The first step is too far: loss and gradient norm go up together, and come down to `back` of the first row."""
    losses = [2.0, 3.0, 4.5, 5.0, 4.6, *([2.0 * back] * (rows - 5))]
    norms = [1.0, 30.0, 40.0, 60.0, 50.0, *([back] * (rows - 5))]
    steps = range(1, rows + 1)
    return Series(steps, losses), Series(steps, norms)


def test_fires_on_a_log_that_never_comes_back_to_its_first_row():
    seen = review(*left_at_once())
    assert seen
    assert seen.step == 3
    assert "2.2 times the first, beside 40 times its gradient norm" in seen.text


def test_stays_quiet_on_a_log_that_comes_back_is_short_or_has_ordinary_gradients():
    loss, norm = left_at_once()
    assert review(*left_at_once(back=0.9)) is None
    assert review(*left_at_once(19)) is None
    assert review(loss, norm, rewards=True) is None
    assert review(loss, Series(range(1, 31), [min(value, 5.0) for _, value in norm.pairs()])) is None


@pytest.mark.parametrize("seed", range(20))
def test_stays_quiet_on_a_low_first_draw(seed):
    """Losses of single samples that are not learned, with gradients that vary with them."""
    rng = np.random.default_rng(seed)
    noise = 0.5 * rng.standard_normal(60)
    noise[0] = noise.min() - 0.1
    steps = range(1, 61)
    norm = np.exp(noise + 0.3 * rng.standard_normal(60))
    assert review(Series(steps, 2.0 * np.exp(noise)), Series(steps, norm)) is None
