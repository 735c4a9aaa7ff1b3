"""Where a batch is padded; and the arms that lay its rows out in another way give the same loss in a sound model."""

import pytest
import torch
import torch.nn.functional as F
from tests.monitor.steps import capture_of
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from finitune.facts_json import facts_from_json
from finitune.monitor.capture.batch_facts import facts_of_batch
from finitune.monitor.probes.padding import padding_of
from finitune.monitor.replay.arms import arm
from finitune.monitor.replay.rerun import rerun

LEFT = torch.tensor([[0, 0, 0, 1, 5, 6], [1, 7, 8, 9, 4, 3], [0, 1, 5, 5, 6, 2]])
RIGHT = LEFT.flip(1)
PADS = torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize("mask", [None, torch.ones_like(LEFT), (LEFT != 5).long()], ids=["none", "ones", "of a token"])
def test_padding_that_no_mask_covers(mask):
    found = padding_of(LEFT, mask)
    assert torch.equal(found.where, PADS)
    seen = None if mask is None else True  # without a mask it is not known whether the padding is seen
    assert (found.side, found.token, found.rows, found.attended) == ("left", 0, 2, seen)
    found = padding_of(RIGHT, None if mask is None else mask.flip(1))
    assert torch.equal(found.where, PADS.flip(1))
    assert found.side == "right"


def test_padding_that_the_mask_covers_is_what_the_mask_says():
    mask = torch.ones_like(LEFT)
    mask[0, 0] = 0
    found = padding_of(LEFT, mask)
    assert found.where.sum() == 1
    assert not found.attended


def test_a_row_that_is_masked_as_a_whole_says_of_no_side():
    mask = torch.ones_like(LEFT)
    mask[1] = 0
    found = padding_of(LEFT, mask)
    assert (found.side, found.rows, found.attended) == (None, 1, False)
    mask[0, :2] = 0
    assert padding_of(LEFT, mask).side == "left"


@pytest.mark.parametrize("ids", [LEFT[1:2], torch.tensor([[1, 5, 6], [1, 7, 8]]), torch.tensor([[5, 5, 6], [5, 5, 8]])])
def test_a_batch_without_padding(ids):
    assert padding_of(ids, None) is None


def setting_of(ids, labels, mask):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    batch = {"input_ids": ids, "labels": labels, "attention_mask": mask}
    return capture_of(model, lambda _: model(**batch, use_cache=False).loss)


def outcome(setting, spelling):
    function, arguments = arm(spelling)
    return rerun(setting, function(setting, *arguments))


@pytest.mark.parametrize("ids", [LEFT, RIGHT], ids=["left", "right"])
@pytest.mark.parametrize("spelling", ["row-by-row", "pad-other-side", "reverse-rows"])
def test_with_a_right_mask_the_layout_of_rows_makes_no_difference(ids, spelling):
    mask = (ids != 0).long()
    labels = ids.masked_fill((ids == 0) | (mask.cumsum(dim=1) == 1), -100)  # a first token has nothing before it
    setting = setting_of(ids, labels, mask)
    expected = rerun(setting)
    changed = outcome(setting_of(ids, labels, mask), spelling)
    assert changed.losses == pytest.approx(expected.losses, rel=1e-4)
    assert torch.allclose(changed.norms, expected.norms, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("spelling", "differs"), [("row-by-row", True), ("pad-other-side", True), ("reverse-rows", False)]
)
def test_padding_that_is_seen_makes_one(spelling, differs):
    labels = LEFT.masked_fill(LEFT == 0, -100)
    expected = rerun(setting_of(LEFT, labels, None))
    changed = outcome(setting_of(LEFT, labels, None), spelling)
    assert (abs(changed.losses[0] - expected.losses[0]) > 1e-3) is differs


def test_there_is_nothing_to_move_where_no_row_is_padded():
    ids = torch.tensor([[1, 5, 6], [1, 7, 8]])
    with pytest.raises(ValueError, match="no row"):
        outcome(setting_of(ids, ids, None), "pad-other-side")


class Wrapper(nn.Module):
    """As Ludwig's: it takes a batch of its own form, pads it and calls the model with token ids."""

    def __init__(self, model, *, whole):
        super().__init__()
        self.model, self.whole = model, whole

    def forward(self, batch):
        logits = self.model(input_ids=batch[0]["rows"].long(), use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), batch[0]["targets"].flatten()) if self.whole else [logits]


@pytest.mark.parametrize("whole", [True, False])
def test_of_a_wrappers_call_the_models_own_is_kept(whole):
    wrapper = Wrapper(setting_of(LEFT, LEFT, None).model, whole=whole)
    batch = ({"rows": LEFT.to(torch.int16), "targets": LEFT},)

    def loss(_):
        return wrapper(batch) if whole else F.cross_entropy(wrapper(batch)[0].flatten(0, 1), LEFT.flatten())

    setting = capture_of(wrapper, loss)
    (call,) = setting.capture.micro_steps[0].calls
    assert call.module is wrapper.model
    assert call.token_ids() is not None
    expected = rerun(setting)
    changed = outcome(setting, "pad-other-side")
    assert abs(changed.losses[0] - expected.losses[0]) > 1e-3


def test_what_fills_up_rows_is_no_token_of_the_data():
    setting = setting_of(LEFT, LEFT, None)
    facts = facts_from_json(facts_of_batch(setting.model, setting.capture))
    assert facts.tokens.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert facts.tokens.first.tolist() == [3, 0, 0, 0, 0, 0, 0, 0, 0]
    assert facts.tokens.sequences == 3
    assert facts.batching.pad_id == 0
    assert 0 in facts.rows.ids


def test_a_row_of_padding_alone_beside_rows_that_end_in_it():
    ids = torch.tensor([[5, 5, 3, 9, 2, 4], [7, 3, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    found = padding_of(ids, None)
    assert (found.side, found.token, found.rows) == ("right", 0, 2), "not the two tokens 5 that begin a row"
    assert padding_of(ids[[0, 2]], None).token == 5, "a row of one token alone says nothing"
