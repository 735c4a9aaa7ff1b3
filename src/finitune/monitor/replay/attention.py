"""Attention computed by another kernel than the one that the model would take."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

OWN = "_attn_implementation_internal"
"""Where a configuration of transformers keeps the name of its kernel."""
PLAIN, TORCHS = "eager", "sdpa"


def by_mathematics() -> AbstractContextManager[Any]:
    """`scaled_dot_product_attention` by its plain mathematics, without a fused kernel."""
    return sdpa_kernel(SDPBackend.MATH)


def kernel_of(model: nn.Module) -> str | None:
    """The kernel that a model of transformers takes, as `attn_implementation` names it; None for other models."""
    found = _model_of_transformers(model)
    return getattr(found.config, OWN, None) if found is not None else None


def take_kernel(model: nn.Module, name: str) -> Callable[[], None]:
    """Let a model of transformers, masks included, take that kernel. Returns what gives its own back.

    Raises ValueError where it cannot.
    """
    found = _model_of_transformers(model)
    if found is None:
        raise ValueError("the model is none of transformers, whose kernel has a name")
    before = [(config, getattr(config, OWN)) for config in _configs(model)]

    def undo() -> None:
        for config, own in before:
            setattr(config, OWN, own)

    try:
        found.set_attn_implementation(name)
    except Exception as error:
        undo()
        raise ValueError(f"the model does not run with {name} attention: {error}") from None
    if getattr(found.config, OWN) != name:
        undo()
        raise ValueError(f"the model does not run with {name} attention")
    return undo


@contextmanager
def on_copies(model: nn.Module) -> Iterator[None]:
    """The same kernel, on contiguous copies of its queries, keys and values: a placebo for causes in the kernel."""
    kernels, name = _registered(), kernel_of(model)
    own = kernels[name] if name is not None and name in kernels else None
    if own is not None and name is not None:
        kernels[name] = lambda module, *qkv_mask, **more: own(module, *map(_copied, qkv_mask), **more)
    try:
        with _Copies():
            yield
    finally:
        if own is not None and name is not None:
            kernels[name] = own


class _Copies(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            args = tuple(map(_copied, args))
        return func(*args, **(kwargs or {}))


def _copied(given: Any) -> Any:
    return given.clone(memory_format=torch.contiguous_format) if isinstance(given, torch.Tensor) else given


def _registered() -> MutableMapping[str, Any]:
    """The kernels of transformers by their names, where it is loaded."""
    module = sys.modules.get("transformers.modeling_utils")
    return getattr(module, "ALL_ATTENTION_FUNCTIONS", {})


def _model_of_transformers(model: nn.Module) -> Any:
    parts = (m for m in model.modules() if callable(getattr(type(m), "set_attn_implementation", None)))
    return next((m for m in parts if hasattr(getattr(m, "config", None), OWN)), None)


def _configs(model: nn.Module) -> list[Any]:
    """Every configuration in the model, with those that they are made of."""
    found: dict[int, Any] = {}
    waiting = [getattr(m, "config", None) for m in model.modules()]
    while waiting:
        config = waiting.pop()
        if hasattr(config, OWN) and id(config) not in found:
            found[id(config)] = config
            waiting += [getattr(config, key, None) for key in getattr(config, "sub_configs", None) or ()]
    return [*found.values()]
