import json
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from tests.sources.worlds import one_line

from finitune.finding import UnreadableInput
from finitune.sources.weights.safetensors import decode, encode, float8_values, read_header, read_rows

DTYPES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64}


def a_file(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_reads_names_shapes_and_places_of_a_real_file(tmp_path):
    save_file({"b": np.zeros((2, 3), np.float32), "a": np.ones(4, np.int64)}, tmp_path / "x.safetensors")
    found = {tensor.name: tensor for tensor in read_header(tmp_path / "x.safetensors")}
    assert found["b"].shape == (2, 3)
    assert found["b"].dtype == "F32"
    assert found["a"].dtype == "I64"
    assert max(tensor.stop for tensor in found.values()) == (tmp_path / "x.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"{not json", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 5000, "not JSON"),
        ([1, 2], "expected a JSON object"),
        ({"t": 3}, "expected dtype, shape and data_offsets"),
        ({"t": entry(dtype=None)}, "dtype"),
        ({"t": entry(shape=[-1, 2])}, "shape"),
        ({"t": entry(shape=[2.0])}, "shape"),
        ({"t": entry(shape=[True])}, "shape"),
        ({"t": entry(offsets=[8, 0])}, "data_offsets"),
        ({"t": entry(offsets=[0])}, "data_offsets"),
        ({"t": entry(offsets="0-8")}, "data_offsets"),
        ({"t": entry(offsets=[0, 2**70])}, "ends at data byte"),
        ({"t": entry(shape=[3])}, "takes 12 bytes"),
        ({"t": entry(shape=[2**40, 2**40])}, "takes"),
        ({"t": entry(), "u": entry()}, "overlaps"),
        ({"t": entry(), "u": entry(offsets=(4, 12))}, "overlaps"),
        ({"t": entry(offsets=(4, 12))}, "gap"),
        ({}, "after the last tensor"),
    ],
)
def test_a_header_that_lies_is_one_line(tmp_path, header, expected):
    with pytest.raises(UnreadableInput, match=expected) as caught:
        read_header(a_file(tmp_path / "x.safetensors", header, b"\0" * 12))
    assert str(tmp_path / "x.safetensors") in one_line(caught.value)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100_000_001, 10_000])
def test_a_header_length_beyond_the_file_is_refused_before_memory_is_taken(tmp_path, length):
    with pytest.raises(UnreadableInput, match="header: length"):
        read_header(a_file(tmp_path / "x.safetensors", {}, length=length))


def test_a_header_that_fits_into_its_file_has_a_limit_all_the_same(tmp_path):
    path = a_file(tmp_path / "x.safetensors", {}, length=150_000_000)
    with path.open("r+b") as file:
        file.truncate(200_000_000)  # takes no space on the disk
    with pytest.raises(UnreadableInput, match="at most 100000000"):
        read_header(path)


def test_a_file_cut_at_any_byte_is_refused(tmp_path):
    whole = tmp_path / "whole.safetensors"
    save_file({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, whole)
    raw = whole.read_bytes()
    for size in range(len(raw)):
        (tmp_path / "cut.safetensors").write_bytes(raw[:size])
        with pytest.raises(UnreadableInput) as caught:
            read_header(tmp_path / "cut.safetensors")
        one_line(caught.value)


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1) | st.integers(0, 200))
def test_arbitrary_bytes_never_do_more_than_refuse(raw, length):
    with tempfile.TemporaryDirectory() as folder:
        path = a_file(Path(folder) / "x.safetensors", raw, length=length)
        try:
            tensors = read_header(path)
        except UnreadableInput as error:
            one_line(error)
        else:
            assert all(8 <= t.start <= t.stop <= path.stat().st_size for t in tensors)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**65) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "U8", "XYZ"]) | JSON_VALUES,
        "shape": st.lists(st.integers(0, 4), max_size=3) | JSON_VALUES,
        "data_offsets": st.lists(st.integers(0, 16), min_size=2, max_size=2) | JSON_VALUES,
    },
)


@given(st.dictionaries(st.text(max_size=4), ENTRIES | JSON_VALUES, max_size=3), st.integers(0, 16))
def test_what_the_reference_refuses_is_refused_here(header, size):
    with tempfile.TemporaryDirectory() as folder:
        path = a_file(Path(folder) / "x.safetensors", header, b"\0" * size)
        try:
            read_header(path)
        except UnreadableInput as error:
            one_line(error)
            return
        if any(e.get("dtype") == "XYZ" for n, e in header.items() if n != "__metadata__"):
            return  # a dtype of the future has a size that only the future knows
        if "__metadata__" in header:
            return  # the reference wants text in it, here nobody reads it
        with safe_open(path, framework="numpy") as reference:
            assert set(reference.keys()) == set(header)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_decoded_as_numpy_does(tmp_path, dtype):
    values = np.random.default_rng(0).standard_normal((5, 7)).astype(DTYPES[dtype])
    save_file({"x": values}, tmp_path / "x.safetensors")
    (tensor,) = read_header(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(read_rows(tensor, 1, 3), values[1:4].astype(np.float32))


@given(st.lists(st.floats(-6e4, 6e4, width=32), min_size=1, max_size=20), st.sampled_from(sorted(DTYPES)))
def test_encoding_rounds_to_nearest_even(values, dtype):
    array = np.array(values, np.float64)
    ours = decode(np.frombuffer(encode(array, dtype), np.uint8), dtype)
    np.testing.assert_array_equal(ours, array.astype(DTYPES[dtype]).astype(ours.dtype))


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_ties_go_to_even(dtype):
    ulp = 2.0 ** (-7 if dtype == "BF16" else -10)
    array = np.array([1 + ulp / 2, 1 + 3 * ulp / 2, -1 - ulp / 2, 1 + ulp / 2 + 2.0**-20])
    ours = decode(np.frombuffer(encode(array, dtype), np.uint8), dtype)
    np.testing.assert_array_equal(ours, [1, 1 + 2 * ulp, -1, 1 + ulp])


@pytest.mark.parametrize(("name", "dtype"), [("F8_E4M3", ml_dtypes.float8_e4m3fn), ("F8_E5M2", ml_dtypes.float8_e5m2)])
def test_all_256_values_of_an_8_bit_float(name, dtype):
    np.testing.assert_array_equal(float8_values(name), np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32))
