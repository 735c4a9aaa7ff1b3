import shlex

import numpy as np
import pytest

from finitune.facts import Labels
from finitune.remedies.drop_unsupervised_rows import apply, propose, ranges


def test_fires_with_the_rows_and_a_new_file():
    remedy = propose(Labels(supervised=np.array([0, 3, 0, 0, 1]), source="my data.jsonl"))
    assert shlex.split(remedy.command) == [
        "finitune", "repair", "drop-unsupervised-rows", "--data", "my data.jsonl", "--rows", "0,2-3",
        "--output", "my data-supervised.jsonl",
    ]  # fmt: skip


@pytest.mark.parametrize("labels", [Labels(supervised=np.zeros(3)), Labels(supervised=np.zeros(3), source="d")])
def test_fires_without_a_command_when_nothing_would_be_left(labels):
    assert propose(labels).command is None


def test_stays_quiet_when_every_row_is_supervised():
    assert propose(Labels(supervised=np.array([1, 2]), source="d.jsonl")) is None


def test_drops_exactly_the_rows():
    assert list(apply(["a", "b", "c", "d"], [1, 3])) == ["a", "c"]


@pytest.mark.parametrize(("rows", "text"), [([], ""), ([4], "4"), ([1, 2], "1-2"), ([0, 2, 3, 4, 9], "0,2-4,9")])
def test_ranges(rows, text):
    assert ranges(rows) == text
