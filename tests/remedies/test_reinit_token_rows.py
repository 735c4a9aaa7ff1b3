import math
import shlex

import numpy as np
import pytest

from finitune.facts import EmbeddingRows, Model, TokenUse
from finitune.finding import Where
from finitune.remedies.reinit_token_rows import apply, propose, untrained


def matrix(rows: int = 400, columns: int = 6, seed: int = 0) -> np.ndarray:
    """Trained rows with a mean and correlated columns; rows 3 and 4 are untrained, row 7 has never been written."""
    rng = np.random.default_rng(seed)
    mixing = np.tril(rng.standard_normal((columns, columns)))
    found = 0.5 + rng.standard_normal((rows, columns)) @ mixing.T
    found[3], found[4], found[7] = 1e-8, 0.0, 0.0
    return found.astype(np.float32)


def blocks(values: np.ndarray, step: int = 64):
    return lambda: ((i, values[i : i + step]) for i in range(0, len(values), step))


def new_rows(values: np.ndarray, tokens: list[int], seed: int = 0, step: int = 64) -> np.ndarray:
    return np.array([row for _, row in apply(blocks(values, step), tokens, seed)])


def test_fires_with_a_command_for_the_tokens_of_a_finding_or_the_short_rows_of_a_batch():
    remedy = propose(where=Where(tokens=[7, 6, 7]), model=Model(path="my model/"))
    assert shlex.split(remedy.command) == [
        "finitune", "repair", "reinit-token-rows", "--model", "my model/", "--tokens", "6,7",
        "--output", "my model-repaired",
    ]  # fmt: skip
    rows = EmbeddingRows(
        tensor="e", ids=np.array([4, 5]), rms=np.array([0.02, 1e-8]), median_rms=0.02, lost_in_cast=np.zeros(2),
        dtype="float16",
    )  # fmt: skip
    assert "--tokens 5 " in propose(rows=rows, model=Model(path="m")).command


def test_fires_once_for_every_short_row_that_the_data_use():
    use = TokenUse(ids=np.array([2, 3, 5, 9]), counts=np.array([1, 1, 1, 0]), first=np.array([1, 0, 0, 0]), sequences=1)
    rms = np.full(10, 0.02)
    rms[[2, 3, 4, 9]] = 1e-9
    rows = EmbeddingRows(
        tensor="e", ids=np.arange(10), rms=rms, median_rms=0.02, lost_in_cast=np.zeros(10), dtype="bfloat16"
    )
    assert "--tokens 2,3 " in propose(where=Where(tokens=[2]), model=Model(path="m"), tokens=use, rows=rows).command
    assert "--tokens 2,3 " in propose(model=Model(path="m"), tokens=use, rows=rows).command


def test_stays_quiet_about_the_command_without_tokens_or_model():
    assert propose().command is None
    assert propose(where=Where(tokens=[6])).command is None
    assert propose(model=Model(path="m")).command is None


def test_new_rows_have_the_median_length_of_the_trained_ones():
    values = matrix()
    trained = np.delete(values.astype(np.float64), [3, 4, 7], axis=0)
    wanted = np.median(np.linalg.norm(trained, axis=1))
    np.testing.assert_allclose(np.linalg.norm(new_rows(values, [3, 4]), axis=1), wanted, rtol=1e-9)


def test_new_rows_follow_mean_and_covariance_of_the_trained_ones():
    values = matrix(4000) + 2
    trained = np.delete(values.astype(np.float64), [3, 4, 7], axis=0)
    drawn = new_rows(values, [3, 4] * 2000)
    # directions only, because the length is fixed afterwards
    ours, theirs = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (drawn, trained))
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=0.03)
    np.testing.assert_allclose(np.cov(ours.T), np.cov(theirs.T), atol=0.03)


def test_new_rows_differ_from_each_other_and_from_the_mean():
    one, two = new_rows(matrix(), [3, 4])
    assert abs(one @ two) / math.sqrt((one @ one) * (two @ two)) < 0.999


@pytest.mark.parametrize("step", [1, 7, 400])
def test_the_same_seed_gives_the_same_rows_however_the_matrix_is_cut(step):
    np.testing.assert_allclose(
        new_rows(matrix(), [3, 4], seed=5, step=step), new_rows(matrix(), [3, 4], seed=5), rtol=1e-9
    )
    assert not np.allclose(new_rows(matrix(), [3, 4], seed=6), new_rows(matrix(), [3, 4], seed=5))


def test_rows_that_are_replaced_or_damaged_teach_nothing():
    values = matrix()
    spoilt = values.copy()
    spoilt[3], spoilt[7] = 1e6, np.nan
    np.testing.assert_allclose(new_rows(spoilt, [3]), new_rows(values, [3]), rtol=1e-9)


def test_nothing_to_learn_from_is_said():
    with pytest.raises(ValueError, match="fewer than two trained rows"):
        list(apply(blocks(np.zeros((4, 3), np.float32)), [0], 0))


def test_untrained_rows_are_told_by_their_length():
    assert untrained(blocks(matrix()), [3, 4, 5]) == {3: True, 4: True, 5: False}
    assert untrained(blocks(-np.abs(matrix())), [5]) == {5: False}
