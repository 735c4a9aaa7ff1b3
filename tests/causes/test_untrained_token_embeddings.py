import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from finitune.causes.untrained_token_embeddings import foresee
from finitune.facts import Adapter, EmbeddingRows, Precision, TokenUse
from finitune.sources.weights import checkpoint

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


@pytest.mark.parametrize(("adapter", "severity"), [(None, "info"), (Adapter(kind="lora"), "warning")])
def test_fires_for_rows_of_usual_length_that_are_copies(adapter, severity):
    copies = np.zeros(20, np.int64)
    copies[[6, 9]] = 1
    (finding,) = foresee(use({6: 10}, {3: 5}), replace(rows({}), twins=copies), HALF, adapter)
    assert finding.severity == severity
    assert finding.where.tokens == [6]
    assert "copies" in finding.message


def test_stays_quiet_about_a_copy_that_is_only_padding_and_one_that_nobody_uses():
    copies = np.zeros(20, np.int64)
    copies[[0, 9]] = 1
    assert not list(foresee(use({3: 10}, {0: 4}, pad_id=0), replace(rows({}), twins=copies), HALF))
    padded_on_the_left = use({3: 5, 0: 5}, pad_id=0)
    assert not list(foresee(padded_on_the_left, replace(rows({}), twins=copies), HALF, Adapter(kind="lora")))


def signed_maximum(matrix: np.ndarray) -> set[int]:
    """The rule that is known from Unsloth, without abs: the largest element is at most 1e-16."""
    return set(np.flatnonzero(matrix.max(axis=1) <= 1e-16).tolist())


def norm_threshold(matrix: np.ndarray, limit: float = 1e-4) -> set[int]:
    """The rule that is known from merging and repair scripts: the norm of the row is below a fixed number."""
    return set(np.flatnonzero(np.linalg.norm(matrix, axis=1) < limit).tolist())


PLANTED = {3: "zero", 4: "rms 1e-8", 5: "rms 1e-6", 6: "copy", 7: "copy", 8: "lost in the cast"}
CONTROLS = {10: "wholly negative", 11: "half the usual length", 12: "one element large", 13: "ten times as long"}


def matrix_with_planted_rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((400, 64)) * 0.02
    matrix[3] = 0
    matrix[4] = rng.standard_normal(64) * 1e-8
    matrix[5] = rng.standard_normal(64) * 1e-6
    matrix[6] = matrix[7] = matrix[20:].mean(axis=0) * 20
    matrix[8] = rng.standard_normal(64) * 1e-9
    matrix[8, 0] = 0.02  # one element keeps the norm, the rest is 0 in float16
    matrix[10] = -np.abs(matrix[10])
    matrix[11] /= 2
    matrix[12, 5] = 0.5
    matrix[13] *= 10
    matrix[20:60] *= 1e-9  # reserved tokens that the data does not use
    return matrix


def test_fires_for_every_planted_row_and_no_control_where_the_two_known_rules_fail(tmp_path):
    matrix = matrix_with_planted_rows().astype(ml_dtypes.bfloat16)
    save_file({"model.embed_tokens.weight": matrix}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 400, "hidden_size": 64}))
    scanned = checkpoint.read(tmp_path, compute="float16").facts.rows
    used = use(dict.fromkeys(PLANTED | CONTROLS, 1), dict.fromkeys(range(60, 400), 1))
    ours = {token for finding in foresee(used, scanned, HALF) for token in finding.where.tokens}
    assert ours == set(PLANTED)

    wide, reserved = matrix.astype(np.float64), set(range(20, 60))
    for rule, missed, false in ((signed_maximum, {4, 5, 6, 7, 8}, {10}), (norm_threshold, {6, 7, 8}, reserved)):
        theirs = rule(wide)
        assert missed <= set(PLANTED) - theirs, rule.__name__
        assert false <= theirs, rule.__name__


def test_stays_quiet_about_the_same_rows_after_the_first_position_but_for_information(tmp_path):
    matrix = matrix_with_planted_rows().astype(ml_dtypes.bfloat16)
    save_file({"model.embed_tokens.weight": matrix}, tmp_path / "model.safetensors")
    scanned = checkpoint.read(tmp_path, compute="float16").facts.rows
    used = use({60: 10}, dict.fromkeys(PLANTED | CONTROLS, 1))
    assert {finding.severity for finding in foresee(used, scanned, HALF)} == {"info"}
