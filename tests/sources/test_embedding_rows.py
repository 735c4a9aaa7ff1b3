import json
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from finitune.sources.weights import embedding_rows as module
from finitune.sources.weights.embedding_rows import embedding_rows
from finitune.sources.weights.safetensors import read_header

DTYPES = {
    "BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip


def rows_of(folder, values: np.ndarray, dtype: str, compute: str | None = "float16"):
    entry = {"dtype": dtype, "shape": values.shape, "data_offsets": [0, values.nbytes]}
    header = json.dumps({"embed_tokens.weight": entry}).encode()
    path = folder / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + values.tobytes())
    return embedding_rows(read_header(path)[0], compute=compute)


def check_against_numpy(folder, values: np.ndarray, dtype: str) -> None:
    found = rows_of(folder, values, dtype)
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        rms = np.sqrt((wide * wide).mean(axis=1))
        lost = (wide != 0) & (np.abs(wide) <= 2.0**-25)
    expected = np.where(np.isfinite(rms), rms, np.nan)
    np.testing.assert_allclose(found.rms, expected, rtol=2e-6)
    fraction = lost.sum(axis=1) / np.maximum((wide != 0).sum(axis=1), 1)
    np.testing.assert_array_equal(found.lost_in_cast, fraction if dtype != "F16" else np.zeros(len(rms)))
    if np.isfinite(expected).any():
        assert found.median_rms == pytest.approx(np.nanmedian(expected))


@given(st.sampled_from(sorted(DTYPES)), st.integers(1, 6), st.integers(1, 9), st.data())
def test_any_bits_at_all_are_summed_as_numpy_sums_them(tmp_path, dtype, rows, columns, data):
    width = columns * np.dtype(DTYPES[dtype]).itemsize
    raw = data.draw(arrays.arrays(np.uint8, (rows, width)))
    check_against_numpy(tmp_path, raw.view(DTYPES[dtype]).reshape(rows, columns), dtype)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("size", [0.02, 3e-8, 1e-25, 60000.0, 0.0, math.inf, math.nan])
@pytest.mark.parametrize("columns", [6, 7])
def test_rows_of_any_size(tmp_path, dtype, size, columns):
    with np.errstate(all="ignore"):
        values = (np.random.default_rng(0).standard_normal((50, columns)) * 0.02).astype(DTYPES[dtype])
        values[[3, 49]] = np.array([size, -size] * columns, dtype=np.float64)[:columns].astype(DTYPES[dtype])
    check_against_numpy(tmp_path, values, dtype)


def test_rows_keep_their_order_over_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 4 * 8 * 5)
    values = np.arange(64, dtype=np.float32)[:, None].repeat(8, axis=1)
    np.testing.assert_allclose(rows_of(tmp_path, values, "F32").rms, np.arange(64))


def test_a_row_longer_than_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 16)
    check_against_numpy(tmp_path, np.ones((3, 100), ml_dtypes.bfloat16), "BF16")
