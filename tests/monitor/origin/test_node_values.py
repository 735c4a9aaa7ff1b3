"""What a derivative computes and masks again is no fault; what it puts out is one."""

from __future__ import annotations

import math

import pytest
import torch

from finitune.monitor.origin.operator_watch import OperatorWatch


def power(x):
    return x ** torch.full((3,), 1.5, requires_grad=True)  # the logarithm of 0, in the derivative of the exponent


def norm(x):
    return (x * torch.ones(3, 3)).norm(dim=0)  # 0 / 0 where all is 0


MASKED = [power, norm]


def watched(function):
    with OperatorWatch.of_arithmetic() as watch:
        x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
        function(x).sum().backward()
    return watch.found()


@pytest.mark.parametrize("masked", MASKED)
def test_what_comes_after_it_is_to_blame(masked):
    def of_a_root(x):
        root = x.sqrt()
        return masked(root)

    found = watched(of_a_root)
    assert (found.op, found.phase) == ("aten.div", "backward")
    assert "root = x.sqrt()" in found.line


@pytest.mark.parametrize("masked", MASKED)
def test_the_step_is_finite(masked):
    x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    masked(x).sum().backward()
    assert torch.isfinite(x.grad).all()


def test_the_same_derivative_may_be_to_blame_elsewhere():
    found = watched(lambda x: x ** torch.full((3,), 0.5, requires_grad=True))
    assert (found.op, found.values) == ("aten.pow", "1 inf")


def test_an_infinity_that_the_derivative_of_logaddexp_divides_by_is_meant():
    far, x = torch.tensor([-1e4, 2.0]), torch.tensor([1.0, -math.inf], requires_grad=True)
    other = torch.tensor([0.0, -math.inf])
    with OperatorWatch.of_arithmetic() as watch:
        torch.logaddexp(x, far).sum().backward()
    assert watch.found() is None
    with OperatorWatch.of_arithmetic() as watch:
        torch.logaddexp(torch.logaddexp(x, other), far).sum().backward()
    assert watch.found().op == "aten.sub"


def test_what_only_looks_at_a_bad_value_made_none():
    """As clipping does, after the backward of a loss whose inputs were bad."""
    bad = torch.tensor([1.0, math.nan])
    with OperatorWatch.of_arithmetic() as watch, torch.no_grad():
        torch.stack([bad.norm(), torch.ones(())]) * 2
    assert watch.found() is None
