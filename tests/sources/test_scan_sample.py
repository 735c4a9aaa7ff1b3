"""Large tensors: the counts stay exact, the rms is an estimate."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from finitune.sources.weights.safetensors import read_header
from finitune.sources.weights.scan import scan

DTYPES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}


def scanned(tmp_path, values):
    save_file({"w": values}, tmp_path / "x.safetensors")
    return scan(read_header(tmp_path / "x.safetensors"), compute="float16")[0]


@pytest.mark.parametrize("columns", [251, 502, 1024, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rms_is_close_and_the_peak_exact_also_with_outlying_columns(tmp_path, dtype, columns):
    values = np.random.default_rng(0).standard_normal((2**21 // columns, columns)) * 0.02
    values[:, 7] *= 30
    values = values.astype(DTYPES[dtype])
    found = scanned(tmp_path, values)
    wide = values.astype(np.float64)
    assert found.peak == np.abs(wide).max()
    tolerance = 0.6 if columns % 251 == 0 else 0.3  # the worst case: the stride is a column
    assert found.rms == pytest.approx(float(np.sqrt((wide**2).mean())), rel=tolerance)


@pytest.mark.parametrize("at", [0, 1, 2**20 - 1, 2**20, 3 * 2**19 + 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_element_between_the_sampled_ones_is_found(tmp_path, at, bad):
    values = np.full(2**21, -0.5, ml_dtypes.bfloat16)
    values[at] = bad
    found = scanned(tmp_path, values)
    assert (found.nonfinite, found.first_nonfinite) == (1, [at])
    assert found.peak == 0.5
    assert found.rms == pytest.approx(0.5, rel=1e-3)


def test_one_overflowing_element_is_counted_wherever_it_is(tmp_path):
    values = np.full(2**20, 0.5, ml_dtypes.bfloat16)
    values[777_777] = 70_000
    found = scanned(tmp_path, values)
    assert found.overflow == 1
    assert found.peak == float(ml_dtypes.bfloat16(70_000))


def test_zeros_have_no_rms(tmp_path):
    found = scanned(tmp_path, np.zeros(2**20, np.float16))
    assert (found.peak, found.rms) == (0, 0)
