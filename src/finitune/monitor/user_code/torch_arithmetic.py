"""What torch and Python compute without drawing random numbers and without writing into what is given, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from finitune.monitor.user_code import numpy_arithmetic

_ACTS = (
    "rand", "normal", "bernoulli", "binomial", "multinomial", "poisson", "dropout", "uniform", "exponential", "gumbel",
    "batch_norm", "instance_norm", "embedding", "register",
)  # fmt: skip
"""Parts of the names of what draws random numbers or writes into what it is given."""
_DRAWS = (
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli",
    "multinomial", "poisson",
)  # fmt: skip
_SAMPLES = ("sample", "rsample")
_NOT = ("backward", "numpy", "tolist", "retain_grad", "rrelu")
_OF_TORCH = dir(torch._C._VariableFunctions)  # pyright: ignore[reportAttributeAccessIssue]
_MAKES = frozenset({*_OF_TORCH, *torch.functional.__all__, "tensor"}) - {
    "from_file", "fused_moving_avg_obs_fake_quant", "pca_lowrank", "svd_lowrank",
}  # fmt: skip
"""Functions of torch itself, without those that write into a file or what they are given, or draw."""
MODULES = (torch, F, torch.linalg, torch.special, math)
_DISTRIBUTIONS = "torch.distributions."
_DENSITIES = ("log_prob", "entropy", "cdf", "icdf")
_LOOKS: dict[type, tuple[str, ...]] = {
    list: ("count", "index"), tuple: ("count", "index"), range: ("count", "index"),
    str: (
        "count", "endswith", "find", "index", "isalpha", "isdigit", "isspace", "join", "lower", "partition", "replace",
        "split", "splitlines", "startswith", "strip", "upper",
    ),
}  # fmt: skip
"""Methods of Python's own that only look at what they belong to."""


class NotPlain(Exception):
    """The expression holds something else."""


def is_distribution(kind: Any) -> bool:
    """A class of torch whose objects are made of parameters alone."""
    return isinstance(kind, type) and issubclass(kind, Distribution) and kind.__module__.startswith(_DISTRIBUTIONS)


def computes(name: str) -> bool:
    """Whether a function or method of torch of this name writes nothing and draws no random numbers."""
    return not (name.endswith("_") or name.startswith("_") or name in _NOT or any(each in name for each in _ACTS))


def function_of(owner: Any, name: str, *, draws: bool) -> Callable[..., Any]:
    """The method or function of that name, where it may be called. Raises NotPlain."""
    if draws and ((owner is torch and name in _DRAWS) or (is_distribution(type(owner)) and name in _SAMPLES)):
        return getattr(owner, name)
    if name in _LOOKS.get(type(owner), ()):
        return getattr(owner, name)
    if name == "requires_grad_" and isinstance(owner, Tensor):
        return partial(_with_graph, owner)
    if name == "numpy" and isinstance(owner, Tensor):
        return lambda **named: owner.numpy(**named).copy()  # what is written to that is no tensor of the program's
    if numpy_arithmetic.computes(owner, name) or (computes(name) and isinstance(owner, Tensor)):
        return getattr(owner, name)
    if is_distribution(type(owner)) and name in _DENSITIES:
        return getattr(owner, name)
    if computes(name) and (owner is not torch or name in _MAKES) and is_one_of(owner, MODULES):
        return getattr(owner, name)
    raise NotPlain(name)


def _with_graph(tensor: Tensor, requires_grad: bool = True) -> Tensor:  # noqa: FBT001, FBT002
    """The tensor, or another one of the same values: it is not written to."""
    return tensor if tensor.requires_grad == requires_grad else tensor.detach().requires_grad_(requires_grad)


def is_one_of(value: Any, modules: tuple[ModuleType, ...]) -> bool:
    return any(value is each for each in modules)  # by identity: a tensor is compared element by element
