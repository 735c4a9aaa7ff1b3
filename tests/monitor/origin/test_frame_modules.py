"""The module in whose code a line of the user's stands."""

from __future__ import annotations

from torch import nn

from finitune.monitor.origin.frame_modules import module_of
from finitune.monitor.probes.modules import Modules
from finitune.monitor.user_code.source_line import described


class Likelihood(nn.Module):
    def forward(self, x):
        return x.log()


class Model(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.likelihoods = nn.ModuleList(Likelihood() for _ in range(parts))

    def training_step(self, x):
        return self.likelihoods[0](x)


def at(function):
    code = function.__code__
    return described(code.co_filename, code.co_firstlineno + 1, code.co_name)


def module_at(function, parts=1):
    modules, model = Modules(), Model(parts)
    modules.add(model)
    return module_of(at(function), modules)


def test_the_only_module_of_the_class():
    assert module_at(Likelihood.forward) == "likelihoods.0"


def test_none_where_several_are_of_the_class_or_the_line_is_in_none():
    assert module_at(Likelihood.forward, parts=2) is None
    assert module_at(Model.training_step) is None, "the whole model is no module within another"
    assert module_at(at) is None
    assert module_of("user_program.py:3: loss = x.log()", Modules()) is None


class Router(nn.Module):
    def forward(self, x):
        return x

    def follow(self, x):
        return x.mean(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router()

    def forward(self, x):
        return self.router.follow(self.router(x))


def test_a_method_of_a_module_within_the_one_that_runs():
    modules, model = Modules(), nn.Sequential(Block(), Block(), Router())
    modules.add(model)
    within = {name: module_of(at(Router.follow), modules, name) for name in ("0", "1", "2", "1.router", "")}
    assert within == {"0": "0.router", "1": "1.router", "2": "2", "1.router": "1.router", "": ""}
    assert module_of(at(Block.forward), modules, "1") == "1"
