"""Where in the batch the first bad values stand: rows, positions, tokens, padding or not."""

from __future__ import annotations

import pytest
import torch
from tests.monitor.steps import capture_of
from torch import nn

from finitune.monitor.origin.locate import locate


class Marked(nn.Module):
    """An embedding, and a layer that overflows wherever token 9 stands."""

    def __init__(self, shape):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 4)
        self.shape = shape

    def forward(self, input_ids, attention_mask=None):
        h = self.embed(input_ids)
        factor = torch.where(input_ids == 9, 1e30, 1.0)
        if self.shape == "rows, positions, hidden":
            return h * 1e30 * factor[..., None]
        if self.shape == "flat":
            return (h.flatten(0, 1) * 1e30) * factor.flatten()[:, None]
        if self.shape == "heads":  # [rows, heads, positions, size]
            return (h.view(*input_ids.shape, 2, 2).transpose(1, 2) * 1e30) * factor[:, None, :, None]
        if self.shape == "rows times heads":
            heads = h.view(*input_ids.shape, 2, 2).transpose(1, 2).flatten(0, 1) * 1e30
            return heads * factor.repeat_interleave(2, dim=0)[..., None]
        raise AssertionError(self.shape)


IDS = torch.tensor([[1, 2, 3, 4, 5], [1, 9, 3, 9, 5], [1, 2, 3, 4, 9]])


@pytest.mark.parametrize("shape", ["rows, positions, hidden", "flat", "heads", "rows times heads"])
@pytest.mark.parametrize("mask", [None, True, False])
def test_rows_positions_tokens_and_padding(shape, mask):
    model = Marked(shape)
    batch = {"input_ids": IDS}
    if mask is not None:
        batch["attention_mask"] = torch.where(IDS == 9, int(mask), 1)
    origin = locate(capture_of(model, lambda _: model(**batch).mean())).origin
    assert origin.op == "aten.mul"
    assert (origin.rows, origin.positions, origin.tokens) == ([1, 2], [1, 3, 4], [9])
    assert origin.padding is (None if mask is None else not mask)


class Coupled(nn.Module):
    """Half of the batch goes through a layer, after arithmetic that passes -inf on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(2, 2)

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        return self.net(torch.cat([b * 2 + a], 1))


def test_minus_inf_that_the_batch_brings_through_arithmetic_is_a_bad_input():
    x = torch.ones(3, 4)
    x[1, 3] = -torch.inf
    origin = locate(capture_of(model := Coupled(), lambda _: model(x).mean())).origin
    assert (origin.phase, origin.tensor, origin.values, origin.rows) == ("input", "input 0", "1 -inf", [1])


def test_the_rows_of_a_gradient_as_large_as_the_vocabulary_are_tokens():
    model = nn.Sequential(nn.Embedding(20, 4)).half()
    ids = torch.where(IDS == 9, 9, torch.arange(IDS.numel()).view(IDS.shape) % 8)
    origin = locate(capture_of(model, lambda _: (model(ids).float() * 30000).sum())).origin
    assert (origin.op, origin.phase, origin.module) == ("aten.embedding_dense_backward", "backward", "0")
    assert origin.tokens == [9], "three times 30000 is beyond float16, twice is not"
    assert (origin.rows, origin.positions) == (None, None)
