"""How many batches of a run have no target is a mean that is known exactly."""

import math

import pytest

from finitune.causes.all_labels_ignored import expected_empty_batches


def test_expected_number_of_empty_batches_is_the_hypergeometric_mean():
    for rows, empty, batch in [(10, 4, 2), (100, 7, 3), (5, 5, 5), (8, 1, 2), (50, 50, 1)]:
        exact = math.comb(empty, batch) / math.comb(rows, batch) * (rows // batch)
        assert expected_empty_batches(rows, empty, batch) == pytest.approx(exact)
    assert expected_empty_batches(3, 3, 8) == 0  # fewer rows than a batch: not a mean, and the caller says "every row"
