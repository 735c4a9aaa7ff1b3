"""What a function of torch that raised was called with."""

import math
import sys
import traceback

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from finitune.crashes import in_words
from finitune.monitor.capture.crash_facts import facts_of_batch, facts_of_frames
from finitune.monitor.capture.step import Call
from finitune.monitor.crash import vocabulary_in_question

SCORES = torch.zeros(3, 4)


def frames(call):
    with pytest.raises((IndexError, RuntimeError)):
        call()
    try:
        call()
    except (IndexError, RuntimeError):
        return [frame for frame, _ in traceback.walk_tb(sys.exc_info()[2])]
    return []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: F.cross_entropy(SCORES, torch.tensor([0, 9, 1])), "label 9 of 4 classes, in sample 1"),
        (lambda: F.nll_loss(SCORES, torch.tensor([0, 1, -1])), "label -1 of 4 classes, in sample 2"),
        (
            lambda: F.cross_entropy(torch.zeros(2, 4, 3), torch.tensor([[0, 1, 2], [0, 4, 1]])),
            "label 4 of 4 classes, in sample 1 at position 1",
        ),
        (lambda: F.embedding(torch.tensor([0, 7]), SCORES), "id 7 of an embedding of 3 rows, at position 1"),
        (
            lambda: F.embedding(torch.arange(9), SCORES),
            "id 3 of an embedding of 3 rows, at position 3, and 5 more, the largest 8",
        ),
        (
            lambda: F.embedding(torch.tensor([[0, 1], [2, 3]]), SCORES),
            "id 3 of an embedding of 3 rows, in sample 1 at position 1",
        ),
    ],
)
def test_the_first_id_that_is_none(call, words):
    assert in_words(facts_of_frames(frames(call))) == [words]


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.cross_entropy(SCORES, torch.tensor([0, 1])),
        lambda: F.linear(SCORES, torch.zeros(2, 3)),
        lambda: F.cross_entropy(SCORES, torch.zeros(3, 5)),
    ],
)
def test_quiet_where_another_thing_is_wrong(call):
    try:
        call()
    except (RuntimeError, ValueError):
        found = [frame for frame, _ in traceback.walk_tb(sys.exc_info()[2])]
    assert facts_of_frames(found) == []


def test_an_ignored_label_is_none_that_is_wrong():
    call = lambda: F.cross_entropy(SCORES, torch.tensor([-100, 0, 5]))  # noqa: E731
    assert in_words(facts_of_frames(frames(call))) == ["label 5 of 4 classes, in sample 2"]


@pytest.mark.parametrize(
    ("text", "vocabulary"),
    [
        ("index out of range in self", 5),
        ("Length of all samples has to be greater than 0", None),
        ("CUDA error: device-side assert triggered", 5),
        ("index 7 is out of bounds for dimension 0 with size 5", 5),
        ("index 50 is out of bounds for dimension 0 with size 50", None),
    ],
)
def test_ids_are_compared_with_a_vocabulary_that_the_error_may_be_about(text, vocabulary):
    assert vocabulary_in_question(RuntimeError(text), 5) == vocabulary


def test_a_batch_that_is_one_dictionary():
    batch = {"pixels": torch.ones(2, 3), "boxes": [torch.tensor([0.0, math.nan])]}
    assert in_words(facts_of_batch([Call.of(nn.Identity(), (batch,), {}, [])], None)) == [
        "input 0['boxes'][0] holds 1 nan, 0 inf, first in sample 1",
        "input 0['pixels']: float32 [2, 3]; input 0['boxes'][0]: float32 [2]",
    ]


def test_a_call_without_tensors_says_nothing():
    assert facts_of_batch([Call.of(nn.Identity(), (3,), {}, [])], None) == []


class Batch:
    def __init__(self, pixels, state):
        self.pixels, self.state = pixels, state


def test_a_class_whose_parts_were_registered_without_names():
    pytree.register_pytree_node(Batch, lambda one: ([one.pixels, one.state], None), lambda parts, _: Batch(*parts))
    call = Call.of(nn.Identity(), (Batch(torch.ones(2, 3), None),), {}, [])
    assert [(name, tensor.shape) for name, tensor in call.named_inputs()] == [("input 0[0]", (2, 3))]
