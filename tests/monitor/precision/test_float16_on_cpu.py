"""float16 products on a CPU: right, overflowing where a tensor core would, and gone after the block."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from finitune.monitor.precision.float16_on_cpu import float16_on_cpu  # noqa: E402

HALF = torch.float16


def operands(dtype):
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(3, 8, 24, generator=generator), torch.randn(3, 24, 6, generator=generator)
    return a.to(dtype), b.to(dtype), torch.randn(3, 8, 6, generator=generator).to(dtype)


def products(dtype):
    a, b, c = operands(dtype)
    return {
        "mm": torch.mm(a[0], b[0]),
        "mm transposed": torch.mm(b[0].T, a[0].T),
        "bmm": torch.bmm(a, b),
        "addmm": torch.addmm(c[0, 0], a[0], b[0], beta=0.5, alpha=2),
        "baddbmm": torch.baddbmm(c, a, b, beta=0.5, alpha=2),
        "matmul": a[:, None] @ b[0],
        "linear": torch.nn.functional.linear(a, b[0].T, c[0, 0]),
        "einsum": torch.einsum("bij,bjk->bik", a, b),
    }


@pytest.mark.parametrize("name", list(products(torch.float32)))
def test_agrees_with_the_native_kernel_to_one_rounding(name):
    native = products(HALF)[name]
    with float16_on_cpu():
        fast = products(HALF)[name]
    assert fast.dtype is HALF
    assert fast.shape == native.shape
    torch.testing.assert_close(fast, native, rtol=2**-10, atol=2**-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_other_dtypes_keep_their_bits(dtype):
    outside = products(dtype)
    with float16_on_cpu():
        inside = products(dtype)
    assert all(torch.equal(outside[name], inside[name]) for name in outside)


def test_gradients_flow():
    a, b, _ = operands(HALF)
    weight = b[0].requires_grad_()
    with float16_on_cpu():
        (a[0] @ weight).sum().backward()
    torch.testing.assert_close(weight.grad, a[0].sum(0).unsqueeze(1).expand(24, 6), rtol=2**-9, atol=2**-9)


def full(value, *shape):
    return torch.full(shape, float(value), dtype=HALF)


def test_a_stored_result_beyond_65504_is_inf_and_a_sum_on_the_way_is_not():
    with float16_on_cpu():
        assert torch.mm(full(300, 1, 8), full(300, 8, 1)).item() == float("inf")
        assert torch.mm(full(-300, 1, 8), full(300, 8, 1)).item() == float("-inf")
        assert torch.mm(full(200, 1, 8), full(40, 8, 1)).item() == 64000
        there_and_back = torch.tensor([[1e4, -1e4]], dtype=HALF)
        assert torch.mm(there_and_back, full(1e4, 2, 1)).item() == 0
        assert torch.addmm(full(60000, 1), full(100, 1, 1), full(100, 1, 1)).item() == float("inf")
        assert torch.mm(full(1, 1, 4096), full(1, 4096, 1)).item() == 4096


def test_nan_and_empty_operands():
    with float16_on_cpu():
        assert torch.mm(full("nan", 1, 2), full(0, 2, 1)).isnan().all()
        assert torch.mm(full("inf", 1, 1), full(0, 1, 1)).isnan().all()
        assert torch.equal(torch.mm(full(1, 2, 0), full(1, 0, 3)), full(0, 2, 3))
        assert torch.bmm(full(1, 0, 2, 3), full(1, 0, 3, 2)).shape == (0, 2, 2)


def test_native_kernels_are_back_after_nested_and_failed_blocks():
    before = torch._C._dispatch_dump("aten::mm")
    native = products(HALF)
    with float16_on_cpu():
        with float16_on_cpu():
            assert torch._C._dispatch_dump("aten::mm") != before
        assert torch._C._dispatch_dump("aten::mm") != before
    with pytest.raises(KeyError), float16_on_cpu():
        raise KeyError
    assert torch._C._dispatch_dump("aten::mm") == before
    assert all(torch.equal(native[name], again) for name, again in products(HALF).items())


def test_prints_nothing():
    code = """
import torch
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu
for _ in range(2):
    with float16_on_cpu():
        torch.ones(2, 2).half() @ torch.ones(2, 2).half()
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == run.stderr == ""
