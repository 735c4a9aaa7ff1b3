from __future__ import annotations

import math

import pytest
import torch

from finitune.monitor.origin.kernel_values import put_in, put_out

X, LOGSUMEXP = torch.zeros(1, 2, 24, 8), torch.full((1, 2, 32), math.inf)
KERNELS = ["_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention", "_flash_attention_forward",
           "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu"]  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_what_a_fused_kernel_keeps_is_no_output(name):
    func = getattr(torch.ops.aten, name).default
    assert put_out(func, (X, LOGSUMEXP)) is X


@pytest.mark.parametrize("name", [n.replace("_forward", "") + "_backward" for n in KERNELS])
def test_nor_is_it_an_input_of_the_backward(name):
    func = getattr(torch.ops.aten, name).default
    given = [LOGSUMEXP if "logsumexp" in one.name else X for one in func._schema.arguments if not one.kwarg_only]
    values, _ = put_in(func, given, {})
    assert all(value is X for value in values)
    assert len(values) == len(given) - 1
    assert put_out(func, (X, X, X)) == (X, X, X)


def test_what_a_ctc_loss_keeps_is_no_value():
    """It is allocated empty, and filled no further than each sequence is long."""
    assert put_out(torch.ops.aten._ctc_loss.default, (X, LOGSUMEXP)) is X
    backward = torch.ops.aten._ctc_loss_backward.default
    given = [LOGSUMEXP if one.name == "log_alpha" else X for one in backward._schema.arguments if not one.kwarg_only]
    values, _ = put_in(backward, given, {})
    assert len(values) == len(given) - 1
    assert all(value is X for value in values)


def _of_batch_norm(name, *, trains):
    func = getattr(torch.ops.aten, name).default
    arguments = [one for one in func._schema.arguments if not one.kwarg_only]
    given = [LOGSUMEXP if one.name.startswith("running_") else X for one in arguments]
    given = [
        trains if one.name in ("train", "training") else value for one, value in zip(arguments, given, strict=True)
    ]
    return given, put_in(func, given, {})[0]


@pytest.mark.parametrize("name", ["native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit"])
def test_running_statistics_are_values_where_the_norm_does_not_train(name):
    given, values = _of_batch_norm(name, trains=True)
    assert len(values) == len(given) - 2
    assert not any(value is LOGSUMEXP for value in values)
    given, values = _of_batch_norm(name, trains=False)
    assert len(values) == len(given)


def test_all_of_any_other_operator_is():
    func = torch.ops.aten.native_layer_norm.default
    assert put_in(func, (X, LOGSUMEXP), {})[0] == (X, LOGSUMEXP)
    assert put_out(func, (X, LOGSUMEXP)) == (X, LOGSUMEXP)
