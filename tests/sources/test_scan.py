import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from finitune.finding import UnreadableInput
from finitune.sources.weights import scan as module
from finitune.sources.weights.safetensors import ITEM_BYTES, read_header
from finitune.sources.weights.scan import OVERFLOWS_FROM, Part, scan

DTYPES = {
    "BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip


def scan_array(values: np.ndarray, dtype: str, *, overflow_at: float = math.inf, vanishes: float = 0.0) -> Part:
    raw = values.tobytes()
    block, scratch = (np.zeros(len(raw) // 4 + 2, np.uint32) for _ in range(2))
    block.view(np.uint8)[: len(raw)] = np.frombuffer(raw, np.uint8)
    limits = module._Range(overflow=overflow_at, vanishes=vanishes)
    found = module._scan_blocks([(0, len(raw) // ITEM_BYTES[dtype], block)], dtype, limits, scratch)
    return found[0] if found else module._estimated(block, 1, 1, dtype, 0.0, limits, scratch)


def check_against_numpy(values: np.ndarray, dtype: str, overflow_at: float = math.inf) -> None:
    part = scan_array(values, dtype, overflow_at=overflow_at)
    wide = np.abs(values.astype(np.float64).ravel())
    finite = np.isfinite(wide)
    assert part.nonfinite == int((~finite).sum())
    assert part.peak == wide[finite].max(initial=0.0)
    assert part.overflow == int((wide[finite] >= overflow_at).sum())
    assert part.first == (None if finite.all() else int(np.argmin(finite)))
    expected = math.fsum((wide[finite] ** 2).tolist())
    assert part.squares == pytest.approx(expected, rel=2e-5, abs=1e-300)


@given(st.sampled_from(sorted(DTYPES)), st.binary(min_size=8, max_size=240))
def test_any_bits_at_all_are_counted_as_numpy_counts_them(dtype, raw):
    size = np.dtype(DTYPES[dtype]).itemsize
    values = np.frombuffer(raw[: len(raw) // size * size], DTYPES[dtype])
    if dtype == "F64" and np.nanmax(np.abs(np.where(np.isfinite(values), values, 0)), initial=0) > 1e150:
        return  # squares beyond float64; only peak and counts mean anything there
    with np.errstate(all="ignore"):
        check_against_numpy(values, dtype, overflow_at=65520.0)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000, 1001])
def test_ordinary_weights_of_any_length(dtype, size):
    check_against_numpy((np.random.default_rng(size).standard_normal(size) * 0.02).astype(DTYPES[dtype]), dtype)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e30])
@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_squares_beyond_the_range_of_float32_are_summed_all_the_same(dtype, size):
    check_against_numpy((np.random.default_rng(0).standard_normal(100) * size).astype(DTYPES[dtype]), dtype)


def test_odd_length_ignores_what_an_earlier_block_left_behind():
    # the buffer is reused: the upper half of the last pair must not leak into the sum
    block = np.full(4, 0x7F7F7F7F, np.uint32)
    block.view(np.uint16)[:3] = np.array([1, 2, 3], ml_dtypes.bfloat16).view(np.uint16)
    limits = module._Range(overflow=math.inf, vanishes=0.0)
    (part,) = module._scan_blocks([(0, 3, block)], "BF16", limits, np.zeros(4, np.uint32))
    assert part.squares == 14


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64"])
def test_one_bad_element_is_found_with_its_index(tmp_path, dtype, value, negative):
    values = np.full((3, 5, 7), 0.5, DTYPES[dtype])
    values[2, 1, 3] = -value if negative else value
    save_file({"w": values}, tmp_path / "x.safetensors")
    (found,) = scan(read_header(tmp_path / "x.safetensors"), compute=None)
    assert found.nonfinite == 1
    assert found.first_nonfinite == [2, 1, 3]
    assert found.peak == found.rms == 0.5


def test_a_wholly_negative_tensor_has_a_peak():
    assert scan_array(np.full(9, -3.0, ml_dtypes.bfloat16), "BF16").peak == 3.0


@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_overflow_is_judged_after_rounding(dtype):
    # 65519.99 rounds down to 65504, 65520 rounds to infinity
    values = np.array([65504, 65519.99, 65520, -65520, 1e30, 1], DTYPES[dtype])
    assert scan_array(values, dtype, overflow_at=OVERFLOWS_FROM["float16"]).overflow == 3
    with np.errstate(over="ignore"):
        assert np.isinf(values.astype(np.float16)).sum() == 3


def test_bfloat16_limit_is_where_rounding_gives_infinity():
    limit = OVERFLOWS_FROM["bfloat16"]
    below = np.nextafter(np.float32(limit), np.float32(0))
    assert np.isinf(np.array(limit, np.float32).astype(ml_dtypes.bfloat16))
    assert np.isfinite(below.astype(ml_dtypes.bfloat16))


def test_blocks_and_units_join_to_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 64)
    monkeypatch.setattr(module, "UNIT_BYTES", 192)
    values = (np.random.default_rng(0).standard_normal((13, 17)) * 3).astype(ml_dtypes.bfloat16)
    values[9, 4] = np.nan
    values[10, 4] = np.inf
    save_file({"w": values, "empty": np.zeros((0, 4), np.float32), "ids": np.arange(4)}, tmp_path / "x.safetensors")
    found = {tensor.name: tensor for tensor in scan(read_header(tmp_path / "x.safetensors"), compute="float16")}
    wide = values.astype(np.float64)
    sound = wide[np.isfinite(wide)]
    assert found["w"].nonfinite == 2
    assert found["w"].first_nonfinite == [9, 4]
    assert found["w"].peak == np.abs(sound).max()
    assert found["w"].rms == pytest.approx(math.sqrt((sound**2).mean()), rel=1e-5)
    assert found["empty"].rms == 0
    assert "ids" not in found


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_samples_of_many_blocks_stand_for_all_and_bad_blocks_for_themselves(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(module, "BLOCK_BYTES", 2**19)
    elements = 2**19 // ITEM_BYTES[dtype] * 9 + 5  # one unit, the last block short
    monkeypatch.setattr(module, "UNIT_BYTES", 2**24)
    values = (np.random.default_rng(0).standard_normal(elements) * 0.02).astype(DTYPES[dtype])
    values[: elements // 3] = 0
    values[elements // 2] = np.nan
    values[elements - 7] = 0.5
    save_file({"w": values}, tmp_path / "x.safetensors")
    (found,) = scan(read_header(tmp_path / "x.safetensors"), compute=None)
    wide = values.astype(np.float64)
    sound = wide[np.isfinite(wide)]
    assert (found.nonfinite, found.first_nonfinite) == (1, [elements // 2])
    assert found.peak == np.abs(sound).max()
    assert found.rms == pytest.approx(math.sqrt((sound**2).mean()), rel=0.03)


def test_a_file_that_shrinks_while_it_is_read_is_one_line(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"w": np.ones(100, np.float32)}, path)
    tensors = read_header(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UnreadableInput, match="ended while it was read"):
        scan(tensors, compute=None)


@pytest.mark.parametrize("dtype", ["BF16", "F32", "F64"])
@pytest.mark.parametrize("elements", [1000, 300_000])
def test_what_a_cast_turns_to_zero_is_counted(dtype, elements):
    values = np.full(elements, 1e-3)
    values[::4], values[1::4], values[2::8] = -(2.0**-25), 0, 2.0**-24
    part = scan_array(values.astype(DTYPES[dtype]), dtype, vanishes=2.0**-25)
    assert part.underflow == pytest.approx(elements / 4, rel=0.05)
    assert scan_array(values.astype(DTYPES[dtype]), dtype).underflow == 0
