"""What is sampled around an update: a tensor that does not move although something pushes it."""

import math
from types import SimpleNamespace

import pytest
import torch

from finitune.monitor.samples import Samples, _update_in_numbers
from finitune.monitor.watch import watch
from finitune.recording import Recording

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


def test_of_the_first_steps_the_size_of_the_update_is_known(tmp_path):
    """Beside the levels that later updates are compared with: first steps are of another size, as those of RAdam."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=tmp_path):
        for _ in range(20):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    signals = Recording.load(tmp_path).signals
    assert [step for step, _ in signals["first_update_ratio"].pairs()] == [2, 4, 8]
    assert [step for step, _ in signals["update_ratio"].pairs()] == [1, 17]


def test_a_shard_of_which_this_rank_holds_no_element_is_none_of_them():
    """As that of a bias of one element on the second of two ranks."""

    class Sharded(torch.Tensor):
        def to_local(self):
            return self[:0].as_subclass(torch.Tensor)

    whole, sharded = torch.ones(3), torch.ones(1).as_subclass(Sharded)
    for parameter in (whole, sharded):
        parameter.grad = torch.ones_like(parameter)
    samples = Samples(SimpleNamespace(parameters=lambda: [whole, sharded]), SimpleNamespace(mode="guard"))
    assert [weight is whole for weight, _, _ in samples._sampled(1)] == [True]
