"""Functions that torch.func makes of the user's (their gradients, Jacobians, batches of them), and the call of a module
with other weights: what is needed to compute them again without calling what is the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

_TRANSFORMS = (
    torch.func.vmap, torch.func.grad, torch.func.grad_and_value, torch.func.jacrev, torch.func.jacfwd,
    torch.func.hessian,
)  # fmt: skip
_HOME = "torch._functorch"


def is_transform(called: Any) -> bool:
    """A call of it runs nothing of the user's."""
    return any(called is one for one in _TRANSFORMS)


def is_transformed(value: Any) -> bool:
    """What a transform has returned: functional_call, beside it, holds nothing of the user's."""
    made = isinstance(value, FunctionType) and bool(value.__closure__)
    return made and str(value.__globals__.get("__name__")).startswith(_HOME)


def is_compiled(value: Any) -> bool:
    """What torch.compile has made of a function, whose backward may run within it and is not seen there."""
    return isinstance(value, FunctionType) and "_torchdynamo_orig_callable" in vars(value)


def with_functions(transformed: FunctionType, again: Callable[[Any], Any]) -> Callable[..., Any]:
    """What a transform has returned, with `again(f)` for each function f of the user's that it calls."""

    def inner(value: Any) -> Any:
        if is_transformed(value):
            return with_functions(value, again)
        users = callable(value) and not str(getattr(value, "__module__", "")).startswith("torch.")
        return again(value) if users or isinstance(value, nn.Module) else value

    cells = tuple(CellType(inner(cell.cell_contents)) for cell in transformed.__closure__ or ())
    copy = FunctionType(
        transformed.__code__, transformed.__globals__, transformed.__name__, transformed.__defaults__, cells
    )
    copy.__kwdefaults__ = transformed.__kwdefaults__
    return copy


@contextmanager
def weights_of(module: nn.Module, given: Any) -> Iterator[None]:
    """The module has the weights that `torch.func.functional_call` was given for it; afterwards its own."""
    parts: list[Mapping[str, Tensor]] = [given] if isinstance(given, Mapping) else list(given)
    weights = {name: tensor for part in parts for name, tensor in part.items()}
    with _reparametrize_module(module, weights, tie_weights=True):
        yield
