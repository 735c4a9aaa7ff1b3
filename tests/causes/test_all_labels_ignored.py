import math

import numpy as np
import pytest

from finitune.causes.all_labels_ignored import expected_empty_batches, foresee, weigh
from finitune.facts import Labels, Optimizer
from finitune.finding import Origin


def labels(*supervised: int) -> Labels:
    return Labels(supervised=np.array(supervised), source="d.jsonl", row_lines=np.arange(len(supervised)) + 1)


@pytest.mark.parametrize(
    ("rows", "batch", "severity"),
    [
        (labels(0, 5, 5), 1, "error"),
        (labels(0, 0), None, "error"),
        (labels(0, 5, 5), None, "warning"),
        (labels(0, 5, 5, 5), 2, "warning"),
        (labels(*[0] * 90, *[5] * 10), 2, "error"),
        (labels(0, 0, *[5] * 1000), 2, "warning"),
    ],
)
def test_fires_by_how_likely_a_wholly_empty_batch_is(rows, batch, severity):
    (finding,) = foresee(rows, Optimizer(batch=batch))
    assert finding.severity == severity


def test_fires_with_rows_lines_and_counts():
    (finding,) = foresee(labels(4, 0, 4, 0))
    assert finding.where.rows == [1, 3]
    assert finding.where.file == "d.jsonl"
    assert finding.evidence["lines"] == [2, 4]
    assert finding.evidence["unsupervised_rows"] == 2
    assert "2 of 4 rows" in finding.message
    assert "lines 2, 4" in finding.message


@pytest.mark.parametrize("batch", [None, 1, 4, 0])
def test_stays_quiet(batch):
    assert not list(foresee(labels(1, 7, 300), Optimizer(batch=batch)))
    assert not list(foresee(labels(1, 7, 300)))


def test_expected_number_of_empty_batches_is_the_hypergeometric_mean():
    for rows, empty, batch in [(10, 4, 2), (100, 7, 3), (5, 5, 5), (8, 1, 2), (50, 50, 1)]:
        exact = math.comb(empty, batch) / math.comb(rows, batch) * (rows // batch)
        assert expected_empty_batches(rows, empty, batch) == pytest.approx(exact)
    assert expected_empty_batches(3, 3, 8) == 0  # fewer rows than a batch: not a mean, and the caller says "every row"


def mean_by_hand(line: str | None, **more) -> float:
    given = {"op": "aten.div", "phase": "forward", "dtype": "float32", "values": "1 nan", "peak": 0.0, "shape": [],
             "divisor": "the divisor is 0"}  # fmt: skip
    origin = Origin(module=None, line=line, **{**given, **more})
    return sum(e.bits for e in weigh(origin=origin))


def test_weighs_by_a_mean_that_the_loop_takes_by_hand():
    assert mean_by_hand("train.py:15 in forward: return (nll * keep).sum() / keep.sum()") > 5
    assert 0 < mean_by_hand(None) < 5
    assert mean_by_hand("train.py:15: loss = a / b.sum()", peak=3.0) == 0, "a loss that is not 0, divided by 0"
    assert mean_by_hand("train.py:15: p = a / b.sum()", shape=[4]) == 0, "no mean over the whole batch"
    assert mean_by_hand("train.py:15: loss = a / b.sum()", divisor=None) == 0


def cut(kept: int, whole: int, rows: int, more: int = 0) -> Labels:
    supervised, before = [kept] * rows + [whole] * more, [whole] * (rows + more)
    return Labels(supervised=np.array(supervised), whole=np.array(before), lengths=np.array(before) + 60)


def test_fires_where_truncation_takes_the_answers():
    (finding,) = foresee(cut(4, 30, 40))
    assert finding.severity == "warning"
    assert "40 of 40 rows" in finding.message
    assert "30 target tokens become 4" in finding.message
    assert finding.remedy.text.startswith("raise max_length (these rows have 90 tokens)")


@pytest.mark.parametrize("rows", [cut(16, 30, 40), cut(4, 30, 1, more=39), labels(5, 5)])
def test_stays_quiet_where_most_of_the_answers_is_left(rows):
    assert not list(foresee(rows))
