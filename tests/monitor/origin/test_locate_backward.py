"""In the backward the operator is the gradient's; module and line are those of the forward that asked for it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.monitor.steps import Net, capture_of, origin_of
from torch import nn

from finitune.monitor.origin.locate import locate

HERE = Path(__file__).name


def tanh(x):
    return torch.tanh(x)


def root_of_zero(x):
    return torch.sqrt(x * 0)


def power_of_zero(x):
    return (x * 0).pow(0.5)


def norm_of_zero(x):
    return x / (x + 2) + (x * 0).square().sum().sqrt()


def zero_where_it_is_not_defined(x):
    """The forward hides it: where(false) drops the NaN, its gradient does not."""
    return torch.where(x < 1e9, x, torch.log(x * 0))


@pytest.mark.parametrize(
    "function", [root_of_zero, power_of_zero, norm_of_zero, zero_where_it_is_not_defined], ids=lambda f: f.__name__
)
def test_backward_is_attributed_to_the_module_and_the_line_of_the_forward(function):
    located, body = origin_of(function)
    origin = located.origin
    assert all(map(math.isfinite, located.outcome.losses))
    assert (origin.phase, origin.module, origin.dtype) == ("backward", "body", "float32")
    file, line = origin.line.split(" in ")[0].split(":")
    assert file == HERE
    assert int(line) in body.lines


def test_a_gradient_made_non_finite_by_a_hook_of_a_module():
    model = Net(tanh)
    model.body.register_full_backward_hook(lambda m, gi, go: tuple(g * 1e30 * 1e30 for g in gi))
    origin = locate(capture_of(model, lambda _: model(torch.randn(2, 5)).mean())).origin
    assert (origin.op, origin.phase) == ("aten.mul", "backward")
    assert origin.module == "body"
    assert "register_full_backward_hook(lambda" in origin.line, "where the hook is written"


def test_a_hook_on_the_gradient_of_a_parameter_is_named_by_the_parameter():
    model = Net(tanh)
    model.after.weight.register_hook(lambda g: g * 1e30 * 1e30)
    origin = locate(capture_of(model, lambda _: model(torch.randn(2, 5)).mean())).origin
    assert (origin.op, origin.phase, origin.module, origin.tensor) == ("aten.mul", "backward", "after", "after.weight")
    assert origin.line.startswith(HERE)


def test_a_constant_written_into_a_gradient():
    def spoil(gradient):
        gradient = gradient.clone()
        gradient[0, 1] = math.nan
        return gradient

    model = Net(tanh)
    model.after.weight.register_hook(spoil)
    origin = locate(capture_of(model, lambda _: model(torch.randn(2, 5)).mean())).origin
    assert (origin.phase, origin.module, origin.tensor) == ("backward", "after", "after.weight")
    assert origin.line.startswith(HERE)


def test_how_we_measure_a_gradient_is_no_origin():
    """As a minus infinity comes from another rank: no operator here made it, and the norm of it is plus infinity."""
    model = Net(tanh)
    came = torch.full_like(model.before.weight, -math.inf)
    model.before.weight.register_hook(lambda gradient: came)
    located = locate(capture_of(model, lambda _: model(torch.ones(2, 3, 5)).mean()))
    assert not located.outcome.passed
    assert located.origin is None


def test_gradients_that_overflow_where_micro_steps_are_summed():
    """Each is within float16, their sum is not."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False)).half()
    x = torch.full((1, 3), 50.0, dtype=torch.float16)
    setting = capture_of(model, lambda _: (model(x).float() * 1000).sum(), micro_steps=2)
    origin = locate(setting).origin
    assert (origin.phase, origin.module, origin.tensor) == ("backward", "0", "0.weight")
    assert origin.op == "aten.add"
    assert origin.peak == float(torch.tensor(50000.0).half())


class Narrow(nn.Linear):
    def forward(self, x):
        return super().forward(x).half().float() * 1e6  # the gradient of the cast is 1e6 in float16


class OneOverZero(torch.autograd.Function):
    """The identity; its backward divides by zero."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / torch.zeros_like(gradient)


class Divided(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, OneOverZero.apply(self.weight))


def checkpointed(made, *, reentrant):
    """The origin where the module `made` alone is checkpointed."""
    model = nn.Sequential(nn.Linear(4, 4), made(4, 4))

    def loss(_):
        h = model[0](torch.ones(2, 4))
        return torch.utils.checkpoint.checkpoint(model[1], h, use_reentrant=reentrant).sum()

    model.forward = lambda _=None: loss(None)
    return locate(capture_of(model, model)).origin


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_backward_that_runs_its_forward_again_names_the_module(reentrant):
    origin = checkpointed(Narrow, reentrant=reentrant)
    assert (origin.module, origin.op, origin.phase) == ("1", "aten._to_copy", "backward")
    assert origin.line.startswith(HERE)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_function_of_the_users_own_in_a_forward_that_is_run_again_names_its_module(reentrant):
    origin = checkpointed(Divided, reentrant=reentrant)
    assert (origin.module, origin.op, origin.phase) == ("1", "aten.div", "backward")


class Recomputed(torch.autograd.Function):
    """The square; its backward computes its input again, with a graph, from what it put out."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.square())
        return x.square()

    @staticmethod
    def backward(ctx, gradient):
        (squared,) = ctx.saved_tensors
        with torch.enable_grad():
            x = (squared / (squared * 0)).requires_grad_()
            out = x.square()
        return torch.autograd.grad(out, x, gradient)[0]


def test_the_line_of_a_backward_that_computes_with_a_graph():
    model = nn.Linear(4, 4)
    model.forward = lambda _=None: Recomputed.apply(nn.functional.linear(torch.ones(2, 4), model.weight)).sum()
    origin = locate(capture_of(model, model)).origin
    assert (origin.op, origin.phase) == ("aten.div", "backward")
    assert origin.line.endswith("in backward: x = (squared / (squared * 0)).requires_grad_()")


def test_what_is_trained_within_reentrant_checkpoints_alone_gets_its_gradients():
    """As in adapters: the parameters lie on no path of the outer graph, and `torch.autograd.grad` finds none."""
    model = nn.Sequential(nn.Linear(4, 4), Narrow(4, 4)).requires_grad_(False)
    model[1].bias.requires_grad_(True)
    x = torch.ones(2, 4, requires_grad=True)  # as enable_input_require_grads has it
    model.forward = lambda: torch.utils.checkpoint.checkpoint(model[1], model[0](x), use_reentrant=True).sum()
    setting = capture_of(model, lambda _: model())
    located = locate(setting)
    assert not located.outcome.passed
    assert (located.origin.module, located.origin.op, located.origin.phase) == ("1", "aten._to_copy", "backward")
    assert model[1].bias.grad is None
