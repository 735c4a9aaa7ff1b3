"""What a run of modules changes beside gradients: buffers, and counts, histories and statistics in plain attributes."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from finitune.monitor.probes.quiet import without_warnings
from finitune.monitor.probes.random_sources import state_kept
from finitune.monitor.probes.surroundings import Randomness

SMALL_BUFFER = 2**20
"""Elements: larger buffers (weights of a quantised model) are not copied, as no forward writes them."""
LARGEST = 4096
"""Entries of a container, and elements of a tensor, that are put back; what is larger is left as a run leaves it."""
DEEPEST = 3
"""So many containers within each other are looked into."""
_OF_TORCH = frozenset(vars(nn.Module()))
_WRAPPERS = ("torch.", "deepspeed.")
"""Their attributes belong to a state that lies elsewhere too, as in a reducer."""
_CONTAINERS = (list, dict, set, deque, Counter, OrderedDict, defaultdict)


@contextmanager
def untouched(*models: nn.Module) -> Iterator[None]:
    """Afterwards buffers, attributes and random number states are as before. Gradients are not touched by a run at all.

    Only small buffers are copied: statistics of a batch norm and the like. Large ones are checked by their version.
    Warnings are not shown again.
    """
    randomness = Randomness.now()
    small = [b for model in models for b in model.buffers() if b.numel() <= SMALL_BUFFER]
    saved = [(b, b.detach().clone()) for b in small]
    held = [(module._buffers, dict(module._buffers)) for model in models for module in model.modules()]
    try:
        with ExitStack() as kept:
            for model in models:
                kept.enter_context(attributes_kept(model))
            kept.enter_context(without_warnings())
            yield
    finally:
        for now, before in held:
            now.update({name: buffer for name, buffer in before.items() if now.get(name) is not buffer})
        with torch.no_grad():
            for buffer, copy in saved:
                if buffer.dtype == copy.dtype and not torch.equal(buffer, copy):
                    buffer.copy_(copy)
        torch.clear_autocast_cache()
        randomness.restore()


def own_modules(model: nn.Module) -> Iterator[nn.Module]:
    """The modules in it that are the user's, or of a library other than torch and DeepSpeed."""
    return (module for module in model.modules() if not type(module).__module__.startswith(_WRAPPERS))


def attributes_of(module: nn.Module) -> dict[str, Any]:
    """Its plain attributes: no parameters, buffers or modules, and nothing that every module has."""
    return {name: value for name, value in vars(module).items() if name not in _OF_TORCH}


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """Afterwards the attributes of every module of the user's, and of their classes, are as before."""
    modules = list(own_modules(model))
    own, before = [vars(module) for module in modules], [attributes_of(module) for module in modules]
    of_classes = [(kind, name, value) for kind in _own_classes(modules) for name, value in _plain(vars(kind))]
    held_by_all = [*(value for held in before for value in held.values()), *(value for *_, value in of_classes)]
    restores = [back for value in held_by_all if (back := _restore(value)) is not None]
    try:
        yield
    finally:
        for kind, name, value in of_classes:
            if vars(kind).get(name) is not value:
                setattr(kind, name, value)
        for held, known in zip(own, before, strict=True):
            for name in [name for name in held if name not in _OF_TORCH and name not in known]:
                del held[name]
            for name, value in known.items():
                if name not in held or held[name] is not value:
                    held[name] = value
        for back in restores:
            back()


def _own_classes(modules: Iterable[nn.Module]) -> set[type]:
    """Those whose attributes a forward may change: the classes of these modules that are no library's wrappers."""
    kinds = {kind for module in modules for kind in type(module).__mro__}
    return {kind for kind in kinds if issubclass(kind, nn.Module) and not kind.__module__.startswith(_WRAPPERS)}


def _plain(held: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Counts, histories and statistics."""
    kinds = (int, float, Tensor, *_CONTAINERS)
    return [(name, value) for name, value in held.items() if isinstance(value, kinds) and not name.startswith("__")]


def _restore(value: Any, depth: int = 0) -> Callable[[], object] | None:
    """What gives a container its entries back, or a tensor its values; None for what cannot change or is too large."""
    if isinstance(value, Tensor):
        return _restore_tensor(value)
    if (source := state_kept(value)) is not None:
        return source
    if type(value) not in _CONTAINERS or len(value) > LARGEST or depth == DEEPEST:
        return None
    copy = value.copy()
    inner = [within for each in _entries(copy) if (within := _restore(each, depth + 1)) is not None]

    def back() -> None:
        if not _same(copy, value):
            value.clear()
            (value.extend if isinstance(value, list | deque) else value.update)(copy)
        for each in inner:
            each()

    return back


def _restore_tensor(tensor: Tensor) -> Callable[[], object] | None:
    if tensor.numel() > LARGEST or tensor.requires_grad or tensor.layout != torch.strided:
        return None
    version, copy = tensor._version, tensor.detach().clone()

    def back() -> None:
        if tensor._version != version:
            with torch.no_grad():
                tensor.copy_(copy)

    return back


def _entries(container: Any) -> list[Any]:
    return list(container.values() if isinstance(container, dict) else container)


def _same(a: Any, b: Any) -> bool:
    """The same objects in the same order, of a dict under the same keys."""
    if len(a) != len(b) or (isinstance(a, dict) and list(a) != list(b)):
        return False
    return all(x is y for x, y in zip(_entries(a), _entries(b), strict=True))
