"""The modules of this process that own trained tensors: found by the garbage collector, named as torch names them."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from finitune.monitor.probes.gc_objects import living

ACTING = ("torch.nn.parallel", "deepspeed.runtime")
"""Where the classes of wrappers are defined whose forward or backward acts on the whole run."""
WRAPPERS = ("module", "_orig_mod")
"""Where DistributedDataParallel, FSDP 1 and torch.compile keep the user's model."""


class Modules:
    """Roots are modules that no other module holds. Nothing here keeps a module or a tensor alive."""

    def __init__(self) -> None:
        self._roots: list[weakref.ref[nn.Module]] = []
        self._names: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._missing: set[int] = set()

    def add(self, root: nn.Module) -> None:
        """Know `root`, and by their names its parameters and buffers."""
        if any(known() is root for known in self._roots):
            self._name(root, self._prefix(root))
            return
        prefix = self._prefix(root)
        self._roots.append(weakref.ref(root))
        self._name(root, prefix)

    def find(self, tensors: Iterable[Tensor]) -> None:
        """Look for the roots that own `tensors`, where some of these are not known yet."""
        wanted = {id(t) for t in tensors if self._name_of(t) is None and id(t) not in self._missing}
        if not wanted:
            return
        alive = [thing for thing in living() if issubclass(type(thing), nn.Module)]
        inner = {id(child) for module in alive for child in _children(module)}
        for module in alive:
            if id(module) not in inner and any(id(t) in wanted for t in _tensors(module)):
                self.add(module)
        self._missing |= {id(t) for t in tensors if self._name_of(t) is None}

    def roots(self) -> list[nn.Module]:
        self._roots = [known for known in self._roots if known() is not None]
        return [module for known in self._roots if (module := known()) is not None]

    def owners(self, tensors: Sequence[Tensor]) -> list[nn.Module]:
        """The roots that own any of `tensors`, the one that owns most of them first."""
        wanted = {id(t) for t in tensors}
        count = {id(root): sum(id(p) in wanted for p in _tensors(root)) for root in self.roots()}
        own = [root for root in self.roots() if count[id(root)]]
        return sorted(own, key=lambda root: -count[id(root)])

    def name(self, tensor: Tensor) -> str:
        """As in `named_parameters()`; of a loose tensor the global variable that holds it, else its shape."""
        return self._name_of(tensor) or _global_name(tensor) or f"tensor of shape {list(tensor.shape)}"

    def module_names(self) -> Iterator[tuple[str, nn.Module]]:
        """Every module under a root with its name; the root itself goes by its class."""
        for root in self.roots():
            prefix = self._prefix(root)
            for name, module in root.named_modules():
                yield (f"{prefix}{name}" if name else type(unwrapped(root)).__name__), module

    def _name_of(self, tensor: Tensor) -> str | None:
        known = self._names.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _name(self, root: nn.Module, prefix: str) -> None:
        inside = unwrapped(root)
        for name, tensor in [*inside.named_parameters(), *inside.named_buffers()]:
            self._names[id(tensor)] = (weakref.ref(tensor), prefix + name)

    def _prefix(self, root: nn.Module) -> str:
        """Nothing for the first root; the class of a further one, numbered where a class occurs twice."""
        roots = self.roots()
        before = roots[: next((n for n, known in enumerate(roots) if known is root), len(roots))]
        if not before:
            return ""
        kinds = Counter(type(unwrapped(known)).__name__ for known in before)
        name = type(unwrapped(root)).__name__
        return f"{name}{kinds[name] + 1}." if kinds[name] else f"{name}."


def device_of(model: nn.Module | None) -> torch.device:
    """Where the first parameter lies; the CPU where there is none."""
    parameters = model.parameters() if model is not None else iter(())
    return next((p.device for p in parameters), torch.device("cpu"))


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's model within DistributedDataParallel and torch.compile."""
    while type(module).__module__.startswith(("torch.nn.parallel", "torch._dynamo")):
        inner = next((i for name in WRAPPERS if isinstance(i := getattr(module, name, None), nn.Module)), None)
        if inner is None:
            break
        module = inner
    return module


def entry_points(root: nn.Module, trained: Sequence[Tensor]) -> list[nn.Module]:
    """The root and the modules below it that hold all of `trained`: the loop calls one of them.

    Wrappers that start collectives, or act on each backward, are left out: what they call is the model itself.
    """
    wanted = {id(t) for t in trained}
    own = {id(p) for p in _tensors(root)} & wanted
    entries = [root, unwrapped(root), *(_holding(root, own) if own else ())]
    return list({id(m): m for m in entries if not type(m).__module__.startswith(ACTING)}.values())


def _holding(module: nn.Module, own: set[int]) -> Iterator[nn.Module]:
    yield module
    for child in _children(module):
        if own <= {id(p) for p in _tensors(child)}:
            yield from _holding(child, own)


def _children(module: nn.Module) -> list[nn.Module]:
    return [child for child in vars(module).get("_modules", {}).values() if isinstance(child, nn.Module)]


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    try:
        yield from module.parameters()
    except (AttributeError, RuntimeError):  # half-made, or half torn down
        return


def _global_name(tensor: Tensor) -> str | None:
    """The variable of the program's main module that holds `tensor`, itself or in a list or dict."""
    main: Any = sys.modules.get("__main__")
    for name, value in list(vars(main).items()) if main is not None else ():
        if value is tensor:
            return name
        if isinstance(value, list | tuple):
            place = next((n for n, each in enumerate(value) if each is tensor), None)
            if place is not None:
                return f"{name}[{place}]"
        if isinstance(value, dict):
            key = next((k for k, each in value.items() if each is tensor), None)
            if key is not None:
                return f"{name}[{key!r}]"
    return None
