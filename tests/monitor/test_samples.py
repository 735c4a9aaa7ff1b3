"""What is sampled around an update: a tensor that does not move although something pushes it."""

import math

import pytest
import torch

from finitune.monitor.samples import _update_in_numbers

LARGE = torch.full((8,), 1e-2)


def unmoved(gradient, *, moves=False):
    """Of a weight with this gradient, beside one that moves."""
    weight, other = torch.ones(8), torch.ones(8)
    taken = [(weight, weight.clone(), gradient), (other, other.clone(), LARGE)]
    other -= 1e-3
    weight -= 1e-3 * moves
    return float(_update_in_numbers(taken, {})["unmoved_tensors"])


def test_a_weight_that_is_pushed_and_stays_is_counted():
    assert unmoved(LARGE) == 1
    assert unmoved(LARGE * 1e-3) == 1


def test_one_that_moves_or_is_not_pushed_is_none():
    assert unmoved(LARGE, moves=True) == 0
    assert unmoved(torch.zeros(8)) == 0


def test_nor_is_one_whose_gradient_is_what_rounding_leaves_of_a_zero():
    """As of the bias before a batch norm, whose true gradient is zero."""
    assert unmoved(LARGE * 1e-7 * torch.tensor([1.0, -1.0] * 4)) == 0


def test_of_a_weight_that_begins_at_zero_an_update_is_no_part():
    zero, other = torch.zeros(8), torch.ones(8)
    taken = [(zero, zero.clone(), LARGE), (other, other.clone(), LARGE)]
    zero -= 1e-3
    other -= 1e-3
    assert float(_update_in_numbers(taken, {})["update_ratio"]) == pytest.approx(1e-3, rel=1e-3)
    assert math.isnan(_update_in_numbers(taken[:1], {})["update_ratio"])
