"""Samples, positions and tokens of bad elements: all of them, however many elements are bad."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from finitune.monitor.capture.step import Call
from finitune.monitor.origin.batch_places import batch_places
from finitune.monitor.probes.finite import places

ROWS, POSITIONS, WIDE = 40, 24, 512


def call(*args, **kwargs):
    return Call.of(nn.Identity(), args, kwargs, [])


def found(tensor, *given, **named):
    return batch_places([call(*given, **named)], 1, tensor, places(tensor))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("shape", "bad"),
    [
        ((ROWS, POSITIONS, WIDE), lambda t, row, position: t[row, position]),
        ((ROWS, 4, POSITIONS, POSITIONS), lambda t, row, position: t[row, :, position]),
        ((ROWS * POSITIONS, WIDE), lambda t, row, position: t[row * POSITIONS + position]),
        ((ROWS * 4, POSITIONS, WIDE), lambda t, row, position: t[row * 4 + 3, position]),
    ],
    ids=["hidden", "scores", "flat", "heads"],
)
def test_every_sample_and_position_is_listed(shape, bad, value):
    ids = torch.arange(ROWS * POSITIONS).view(ROWS, POSITIONS)
    tensor = torch.zeros(shape)
    for row in range(20, ROWS):  # more elements than `places` has indices for
        for position in range(3, 23):
            bad(tensor, row, position).fill_(value)
    rows, positions, tokens, padding = found(tensor, ids)
    assert (rows, positions) == (list(range(20, ROWS)), list(range(3, 23)))
    assert tokens == sorted(ids[20:, 3:23].flatten().tolist())
    assert padding is None


def test_of_a_batch_without_tokens_every_sample_is_listed():
    tensor = torch.zeros(ROWS, WIDE)
    tensor[:30] = math.nan
    assert found(tensor, torch.zeros(ROWS, 8)) == (list(range(30)), None, None, None)


@pytest.mark.parametrize("shape", [(3,), (3, 5)])
def test_what_the_loop_computes_of_each_sample(shape):
    tensor = torch.zeros(shape)
    tensor[1] = math.nan
    given = [call(torch.arange(12).view(3, 4))], 1, tensor, places(tensor)
    assert batch_places(*given, of_loop=True) == ([1], None, None, None)
    assert batch_places(*given) == (None, None, None, None)


def test_a_number_for_each_sample_of_a_batch_without_tokens():
    tensor = torch.tensor([1.0, math.nan, 2.0])
    given = [call(torch.zeros(3, 8))], 1, tensor, places(tensor)
    assert batch_places(*given, of_loop=True) == ([1], None, None, None)
    assert batch_places(*given) == (None, None, None, None)


def test_rows_of_a_vocabulary_are_tokens():
    tensor = torch.zeros(1000, 8)
    tensor[[5, 990]] = math.inf
    assert found(tensor, torch.arange(12).view(3, 4)) == (None, None, [5, 990], None)


def test_padding_is_told_from_all_bad_positions():
    ids, mask = torch.ones(ROWS, POSITIONS, dtype=torch.int64), torch.ones(ROWS, POSITIONS)
    mask[:, 20:] = 0
    tensor = torch.zeros(ROWS, POSITIONS, WIDE)
    tensor[:, 20:] = math.nan
    assert found(tensor, input_ids=ids, attention_mask=mask)[3] is True
    tensor[39, 19, 511] = math.nan
    assert found(tensor, input_ids=ids, attention_mask=mask)[3] is False


def test_whether_it_is_padding_is_not_known_where_a_mask_has_another_form():
    """Of an adjacency, say; the same token at the ends of rows is then no padding."""
    ids = torch.tensor([[1, 2, 0, 0], [1, 0, 0, 0], [3, 2, 1, 2]])
    tensor = torch.zeros(3, 4, 8)
    tensor[1, 3] = math.nan
    assert found(tensor, ids)[3] is True
    assert found(tensor, ids, torch.ones(3, 4, 4, dtype=torch.bool)) == ([1], [3], [0], None)


def test_nothing_is_said_of_another_shape():
    assert found(torch.full((7,), math.nan), torch.zeros(ROWS, 8)) == (None, None, None, None)
    assert found(torch.tensor(math.nan), torch.ones(3, 4, dtype=torch.int64)) == (None, None, None, None)
