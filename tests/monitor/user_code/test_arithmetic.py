"""Plain arithmetic is computed again; nothing else is."""

import ast
from collections import deque

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from finitune.monitor.user_code.arithmetic import applied_by_name, evaluate
from finitune.monitor.user_code.torch_arithmetic import NotPlain

VALUES = {
    "torch": torch, "F": F, "a": torch.arange(6.0).reshape(2, 3), "n": 2, "model": torch.nn.Linear(3, 3),
    "items": [1, 2], "text": "abc", "history": deque([torch.ones(3), torch.zeros(3)]),
    "b": {"most": (1.0, 3.0)}, "weight": None, "np": np, "r": np.arange(6.0).reshape(2, 3),
}  # fmt: skip


def again(source):
    return evaluate(ast.parse(source, mode="eval").body, VALUES)


@pytest.mark.parametrize(
    "source",
    [
        "a / a.sum(1, keepdim=True)", "-a[:, 0] ** n", "torch.stack([a[0], a[1]], 1)", "F.log_softmax(a, dim=-1)",
        "torch.where(a > 1, a, a.clamp_min(0.5)).mean()", "a @ a.T", "a.to(torch.float16)[..., 1:].float()",
        "torch.linalg.norm(a)", "a if n else -a", "a.clamp(max=b['most'][1])", "sum([a[0], a[1]])",
        "a * (weight is None)", "torch.zeros(2, dtype=a.dtype)", "a + len(items)", "history[0] / history[1]",
        "torch.ones(a.shape)", "torch.from_numpy(np.log(r + 1) / r.std(1, keepdims=True))", "torch.as_tensor(r[:, 0])",
        "torch.tensor(np.linalg.norm(r) + np.float32(2).item())", "torch.from_numpy(r.T.astype(np.float32))",
    ],
)  # fmt: skip
def test_the_value_is_that_of_python(source):
    assert torch.equal(again(source), eval(source, VALUES))


def test_an_array_of_a_tensor_shares_nothing_with_it():
    made = again("a.numpy()")
    assert np.array_equal(made, VALUES["a"].numpy())
    assert not np.shares_memory(made, VALUES["a"].numpy())


@pytest.mark.parametrize(
    "source",
    [
        "a.add_(1)", "torch.rand(3)", "F.dropout(a)", "model(a)", "open('x')", "a.sum().backward()",
        "torch.save(a, 'x')",
        "torch.load('x')", "torch.add(a, a, out=a)", "F.relu(a, inplace=True)",
        "torch.ops.load_library('x')", "text.encode()", "a.__class__", "a.grad_fn", "torch.manual_seed(0)",
        "F.batch_norm(a, a, a)", "torch.hub.load('x', 'y')", "a.bernoulli()", "(lambda: a)()", "a if model else a",
        "np.random.rand(3)", "np.random.default_rng()", "r.sort()", "r.tofile('x')", "np.save('x', r)", "np.log(r, r)",
        "np.nan_to_num(r, copy=False)", "np.add(r, r, out=r)", "np.load('x')", "np.fromfile('x')", "np.copyto(r, 0)",
        "len(**items)", "b[model]", "unknown + a",
    ],
)  # fmt: skip
def test_refuses(source):
    before = VALUES["a"].clone()
    with pytest.raises(NotPlain):
        again(source)
    assert torch.equal(VALUES["a"], before)


@pytest.mark.parametrize(
    "function", [torch.sqrt, F.softplus, torch.special.expit, torch.linalg.vector_norm, F.mse_loss]
)
def test_a_function_by_its_own_name(function):
    args = (VALUES["a"],) * (2 if function is F.mse_loss else 1)
    assert torch.equal(applied_by_name(function, args, {}, draws=False), function(*args))


@pytest.mark.parametrize("function", [torch.rand, F.dropout, torch.manual_seed, print, None, lambda a: a, "sqrt"])
def test_refuses_a_function_by_its_own_name(function):
    with pytest.raises(NotPlain):
        applied_by_name(function, (VALUES["a"],), {}, draws=False)
