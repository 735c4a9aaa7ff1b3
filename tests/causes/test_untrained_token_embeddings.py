"""Rows that were never trained: several at once, and in a matrix on disk beside rows that only look like it."""

import json

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tests.causes.parts import HALF, rows, use
from tests.causes.rows import found

from finitune.sources.weights import checkpoint

CAUSE = "untrained-token-embeddings"


def test_fires_once_per_severity_with_every_token():
    tokens, short = use({6: 1, 7: 1}, {8: 1}), rows({6: 1e-8, 7: 0, 8: 0})
    findings = {one.severity: one for one in found(CAUSE, tokens=tokens, rows=short, precision=HALF)}
    assert findings["error"].where.tokens == [6, 7]
    assert findings["error"].evidence["row_rms"] == 0
    assert findings["info"].where.tokens == [8]


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
    findings = found(CAUSE, tokens=used, rows=scanned, precision=HALF)
    ours = {token for finding in findings for token in finding.where.tokens or ()}
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
    assert {finding.severity for finding in found(CAUSE, tokens=used, rows=scanned, precision=HALF)} == {"info"}
