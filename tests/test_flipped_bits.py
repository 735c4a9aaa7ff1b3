"""One flipped bit in memory, told by the magnitudes of a tensor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.causes.parts import scanned, tensor

torch = pytest.importorskip("torch")

from finitune.flipped_bits import FORMATS, flipped  # noqa: E402
from finitune.monitor.probes.live_facts import _scan  # noqa: E402

BITS = {"float16": (torch.int16, 14), "bfloat16": (torch.int16, 14), "float32": (torch.int32, 30),
        "float64": (torch.int64, 62)}  # fmt: skip
BELOW = {"float16": 13, "bfloat16": 13, "float32": 29, "float64": 61}


def weights(seed: int, dtype: str, scale: float = 0.02):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(32, 16, generator=generator) * scale).to(getattr(torch, dtype))


def with_bit(values, dtype: str, bit: int, at: int):
    kind, _ = BITS[dtype]
    flat = values.clone().view(-1)
    flat.view(kind)[at] ^= 1 << bit
    return flat.view_as(values)


@given(seed=st.integers(0, 1000), at=st.integers(0, 511), dtype=st.sampled_from(sorted(FORMATS)))
def test_fires_for_the_upper_bit_of_the_exponent(seed, at, dtype):
    before = weights(seed, dtype)
    changed = with_bit(before, dtype, BITS[dtype][1], at)
    if abs(float(before.view(-1)[at])) < 1e-3:
        return  # of a weight that was next to nothing no more is left
    found = flipped(scanned(_scan("a.weight", changed)))
    assert found is not None
    assert found[1] == pytest.approx(abs(float(before.view(-1)[at])), rel=1e-3)


@given(
    seed=st.integers(0, 1000), dtype=st.sampled_from(sorted(FORMATS)),
    scale=st.floats(1e-3, 1e3), one=st.floats(1.0, 1000.0),
)  # fmt: skip
def test_stays_quiet_for_a_weight_that_is_only_large(seed, dtype, scale, one):
    values = weights(seed, dtype, scale)
    values[3, 5] = values.abs().max() * one
    assert flipped(scanned(_scan("a.weight", values))) is None


@given(seed=st.integers(0, 1000), at=st.integers(0, 511), dtype=st.sampled_from(sorted(FORMATS)))
def test_stays_quiet_for_a_bit_below(seed, at, dtype):
    """It makes an element of ordinary size next to nothing, or a few times as large."""
    changed = with_bit(weights(seed, dtype), dtype, BELOW[dtype], at)
    assert flipped(scanned(_scan("a.weight", changed))) is None


@given(seed=st.integers(0, 1000), at=st.integers(0, 511), dtype=st.sampled_from(sorted(FORMATS)))
def test_fires_for_a_nan_that_one_bit_makes(seed, at, dtype):
    """Of weights of about 1, as those of a norm."""
    before = 1.5 + weights(seed, dtype, 0.1)
    found = flipped(scanned(_scan("norm.weight", with_bit(before, dtype, BITS[dtype][1], at))))
    one = float(before.view(-1)[at])
    # whose bits are those that arithmetic makes too, or an infinity, or that of 2 and more a number next to nothing
    by_arithmetic = one in (1.0, 1.5) or one >= 2
    assert by_arithmetic if found is None else found[1] == pytest.approx(one, rel=1e-3)


@pytest.mark.parametrize("dtype", sorted(FORMATS))
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_stays_quiet_for_what_arithmetic_makes(dtype, bad):
    values = 1.5 + weights(0, dtype, 0.1)
    values[3, 5] = bad
    assert flipped(scanned(_scan("norm.weight", values))) is None
    values[3, 5] = 1.5
    values[7, 1] *= bad
    assert flipped(scanned(_scan("norm.weight", values))) is None


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 0x7FFFFFFF), ("float16", 0x7FFF), ("bfloat16", 0x7FFF)])
def test_stays_quiet_for_what_gpus_make(dtype, bits):
    values = 1.5 + weights(0, dtype, 0.1)
    values.view(-1).view(BITS[dtype][0])[5] = bits
    assert flipped(scanned(_scan("norm.weight", values))) is None


def test_stays_quiet_where_the_others_are_zero_or_not_read():
    assert flipped(None) is None
    assert flipped(scanned(tensor(peak=1e37, dtype="float32", second=0.0))) is None
    assert flipped(scanned(tensor(peak=1e37, dtype="float32"))) is None
    assert flipped(scanned(_scan("a.weight", torch.full((1,), 1e37)))) is None
    assert flipped(scanned(tensor(peak=1e37, dtype="float8_e4m3fn", second=0.1))) is None
