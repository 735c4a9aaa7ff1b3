"""A program that dies: is a weight named that is not finite, and only where it is known who wrote it?"""

import pytest
import torch

from finitune.monitor.bad_weight import bad_weight
from finitune.monitor.optimizers import Optimizers
from finitune.monitor.probes.modules import Modules


def watched(model, *, steps=0):
    modules, optimizers = Modules(), Optimizers()
    modules.find(list(model.parameters()))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    of = optimizers.add(optimizer, born=0, modules=modules)
    of.steps, of.finite_weights = steps, True
    return modules, optimizers, of, optimizer  # the last is held by the program


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))


def spoil(parameter, value):
    parameter.detach().view(-1)[5] = value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_weight_that_nobody_has_trained_is_named_as_it_was_loaded(model, value, dtype):
    model.to(dtype)
    spoil(model[1].weight, value)
    modules, optimizers, *_ = watched(model)
    origin = bad_weight(modules, optimizers)
    assert origin is not None
    assert (origin.phase, origin.tensor, origin.rows) == ("parameter", "1.weight", [1])


def test_a_frozen_one_also_after_steps(model):
    model[0].requires_grad_(False)
    spoil(model[0].weight, float("nan"))
    modules, optimizers, *_ = watched(model, steps=3)
    origin = bad_weight(modules, optimizers)
    assert origin is not None
    assert (origin.phase, origin.tensor) == ("parameter", "0.weight")


def test_one_that_the_optimizer_has_written_last_is_the_optimizers(model):
    modules, optimizers, of, _ = watched(model, steps=3)
    spoil(model[1].weight, float("nan"))
    of.versions_left = of.versions()
    origin = bad_weight(modules, optimizers)
    assert origin is not None
    assert (origin.phase, origin.op, origin.tensor) == ("optimizer", "SGD.step", "1.weight")


def test_one_that_the_program_has_written_after_a_step_is_nobodys(model):
    modules, optimizers, of, _ = watched(model, steps=3)
    of.versions_left = of.versions()
    spoil(model[1].weight, float("nan"))
    assert bad_weight(modules, optimizers) is None


def test_finite_weights_are_not_named(model):
    modules, optimizers, *_ = watched(model)
    assert bad_weight(modules, optimizers) is None
