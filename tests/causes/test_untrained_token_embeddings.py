import numpy as np
import pytest

from finitune.causes.untrained_token_embeddings import foresee
from finitune.facts import EmbeddingRows, Precision, TokenUse

HALF, BRAIN = Precision(compute="float16"), Precision(compute="bfloat16")
MEDIAN = 0.02


def use(first: dict[int, int], later: dict[int, int] | None = None, **more) -> TokenUse:
    """Ids with how often they begin a sequence, and ids that only come later."""
    counts = {**first, **(later or {})}
    return TokenUse(
        ids=np.array(list(counts)), counts=np.array(list(counts.values())),
        first=np.array([first.get(i, 0) for i in counts]), sequences=10, names={6: "<|im_start|>"}, **more,
    )  # fmt: skip


def rows(sizes: dict[int, float], lost: dict[int, float] | None = None) -> EmbeddingRows:
    rms = np.full(20, MEDIAN)
    gone = np.zeros(20)
    for id_, size in sizes.items():
        rms[id_] = size
    for id_, share in (lost or {}).items():
        gone[id_] = share
    return EmbeddingRows(
        tensor="model.embed_tokens.weight", ids=np.arange(20), rms=rms, median_rms=MEDIAN, lost_in_cast=gone,
        dtype="bfloat16", file="model.safetensors",
    )  # fmt: skip


def test_fires_with_the_numbers_and_the_place():
    (finding,) = foresee(use({6: 10, 5: 3}), rows({6: 1e-8}, {6: 0.997}), HALF)
    assert finding.severity == "error"
    assert finding.where.tokens == finding.where.rows == [6]
    assert finding.where.tensor == "model.embed_tokens.weight"
    assert finding.evidence["row_rms"] == 1e-8
    assert finding.evidence["ratio"] == pytest.approx(5e-7)
    assert finding.evidence["first_positions"] == 10
    assert finding.evidence["lost_in_cast"] == 0.997
    for piece in ("6 <|im_start|>", "1e-08", "99.7%", "10 of 10 sequences", "float16"):
        assert piece in finding.message


@pytest.mark.parametrize(
    ("size", "precision", "severity"),
    [
        (1e-5, HALF, "error"),
        (1e-5, BRAIN, "warning"),
        (1e-5, None, "warning"),
        (0.0, BRAIN, "error"),
        (0.0, None, "error"),
    ],
)
def test_fires_by_size_and_dtype_at_position_0(size, precision, severity):
    assert [f.severity for f in foresee(use({6: 1}), rows({6: size}), precision)] == [severity]


@pytest.mark.parametrize("size", [0.0, 1e-8])
def test_fires_only_as_a_remark_where_the_token_never_begins_a_sequence(size):
    assert [f.severity for f in foresee(use({5: 1}, {6: 9}), rows({6: size}), HALF)] == ["info"]


def test_fires_for_a_row_that_the_cast_wipes_out_although_it_is_not_short():
    assert [f.severity for f in foresee(use({6: 1}), rows({6: MEDIAN}, {6: 0.9}), HALF)] == ["error"]


def test_fires_once_per_severity_with_every_token():
    findings = {f.severity: f for f in foresee(use({6: 1, 7: 1}, {8: 1}), rows({6: 1e-8, 7: 0, 8: 0}), HALF)}
    assert findings["error"].where.tokens == [6, 7]
    assert findings["error"].evidence["row_rms"] == 0
    assert findings["info"].where.tokens == [8]


def test_fires_for_padding_that_is_attended_at_position_0():
    assert [f.severity for f in foresee(use({6: 1}, pad_id=6), rows({6: 0.0}), HALF)] == ["error"]


@pytest.mark.parametrize(
    ("tokens", "matrix"),
    [
        (use({6: 10}), rows({})),
        (use({5: 10}), rows({6: 0.0})),  # an untrained row that the data do not use
        (use({6: 10}), rows({6: MEDIAN / 10})),
        (use({6: 10}), rows({6: MEDIAN * 50})),
        (use({5: 10}, {6: 3}, pad_id=6), rows({6: 0.0})),  # padding at the end
        (TokenUse(ids=np.array([6]), counts=np.array([0]), first=np.array([9]), sequences=9), rows({6: 0.0})),  # masked
        (use({500: 10}), rows({})),  # outside of the matrix: another cause
        (use({6: 10}), rows({6: float("nan")})),  # non-finite: another cause
    ],
)
@pytest.mark.parametrize("precision", [HALF, BRAIN, None])
def test_stays_quiet(tokens, matrix, precision):
    assert not list(foresee(tokens, matrix, precision))


def test_stays_quiet_about_trained_rows_of_a_matrix_that_is_mostly_empty():
    matrix = rows(dict.fromkeys(range(19), 0.0))
    matrix = EmbeddingRows(
        tensor="e", ids=matrix.ids, rms=matrix.rms, median_rms=0.0, lost_in_cast=matrix.lost_in_cast, dtype="float32"
    )
    assert not list(foresee(use({19: 10}), matrix, HALF))
