# ruff: noqa: NPY002  whose state is the process's
"""The states of random numbers, as a forward found them."""

import random

import numpy as np
import pytest

pytest.importorskip("torch")
from finitune.monitor.probes.surroundings import Randomness

DRAWS = [
    np.random.rand,
    np.random.randn,  # every second one takes the half that the one before has left, and moves no generator
    lambda: np.random.shuffle([1, 2, 3]),
    lambda: np.random.seed(3),
    lambda: None,
]


@pytest.fixture(autouse=True)
def state_kept():
    before = np.random.get_state()
    yield
    np.random.set_state(before)


def test_numpy_draws_the_same_again_after_any_draw():
    choice = random.Random(0)
    for _ in range(300):
        choice.choice(DRAWS)()
        known, state = Randomness.now(), np.random.get_state()
        for seen, held in zip(known.numpy, state, strict=True):
            assert np.array_equal(seen, held)


def test_a_generator_of_another_kind_is_read_as_well():
    np.random.seed(5)
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        known = Randomness.now()
        drawn = np.random.rand()
        known.restore()
        assert np.random.rand() == drawn
    finally:
        np.random.set_bit_generator(before)
