"""A module that computes in float32 inside a run of lower precision, while its weights keep their dtype.

Its inputs are cast up, autocast is off within it, weights in half precision are cast up for the time of a call, and
what it returns is cast back. Gradients reach the weights through the cast. `state_dict` shows no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from finitune.monitor.heal.forwards import replaced

HALF = (torch.float16, torch.bfloat16)


def compute_in_float32(module: nn.Module) -> Callable[[], None]:
    """Returns what makes the module compute as before."""
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        tensors = [*(t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)), *module.parameters()]
        floats = [t for t in tensors if t.is_floating_point()]  # token ids have no dtype to return to
        device = tensors[0].device.type if tensors else "cpu"
        back = floats[0].dtype if floats else torch.float32
        if torch.is_autocast_enabled(device):
            back = torch.get_autocast_dtype(device)
        args, kwargs = pytree.tree_map(lambda leaf: _cast(leaf, HALF, torch.float32), (args, kwargs))
        with torch.autocast(device, enabled=False), _weights_in_float32(module):
            output = own(*args, **kwargs)
        return pytree.tree_map(lambda leaf: _cast(leaf, (torch.float32,), back), output)

    return replaced(module, forward)


def half_bytes(module: nn.Module) -> int:
    """Of its weights in half precision, which are there twice more while it computes."""
    return sum(p.nbytes for p in module.parameters() if p.dtype in HALF)


@contextmanager
def _weights_in_float32(module: nn.Module) -> Iterator[None]:
    places = [
        (part, name, p)
        for part in module.modules()
        for name, p in part._parameters.items()
        if p is not None and p.dtype in HALF
    ]
    wide = {id(p): p.float() for _, _, p in places}
    try:
        for part, name, p in places:
            part._parameters[name] = wide[id(p)]  # pyright: ignore[reportArgumentType]
        yield
    finally:
        for part, name, p in places:
            part._parameters[name] = p


def _cast(leaf: Any, those: tuple[torch.dtype, ...], dtype: torch.dtype) -> Any:
    return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.dtype in those else leaf
