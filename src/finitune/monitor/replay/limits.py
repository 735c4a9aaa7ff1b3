"""What an investigation may take: seconds, a share of the free memory, no collective that others do not join."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from finitune.monitor.probes.modules import device_of
from finitune.monitor.probes.ranks import Group

SECONDS = 60.0
"""Well below the time-out of a collective (NCCL: 600 s, gloo: 1800 s), which other ranks wait in."""
SHARE = 0.5
"""Of the free memory of the device, for the gradients of one more backward beside those of the step."""
_shared: ContextVar[Limits | None] = ContextVar("the budget of the investigation that runs", default=None)
COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional", "fsdp")


class OverBudget(Exception):
    """The investigation has used up its seconds; the rest is left for `finitune diagnose --prove`."""


class Communicates(Exception):
    """The model's own forward or backward talks to other ranks, so that one rank cannot run it alone."""


@dataclass(slots=True, kw_only=True)
class Limits:
    """The budget of one investigation; it begins when it is made."""

    seconds: float = SECONDS
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)

    def check(self) -> None:
        """Raises OverBudget."""
        if self.left <= 0:
            raise OverBudget(f"more than {self.seconds:g} seconds")

    @classmethod
    def of_the_investigation(cls) -> Limits:
        """Those that are shared now; where nothing is investigated, new ones."""
        return _shared.get() or cls()

    def why_not(self, model: nn.Module, *, together: bool = False) -> str | None:
        """Why there is no room for a run of `model`; None when there is. Where ranks can only run it `together`, one
        that is out of memory in the middle leaves the others waiting: there must be room for all that a step has taken.
        """
        needed = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        device = device_of(model)
        free = free_bytes(device)
        if free is None:
            return None
        if together and needed + (taken := _taken_by_a_step(device)) > free:
            return f"a step takes {(needed + taken) / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
        if needed <= SHARE * free:
            return None
        return f"the gradients of one more backward take {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"

    @contextmanager
    def alone(self, group: Group) -> Iterator[None]:
        """Operators run under this budget; those that communicate are refused unless the group runs them together."""
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            yield
            return
        with _Watch(self, refuse=group.size > 1 and not group.split):
            yield


@contextmanager
def one_budget(limits: Limits | None = None) -> Iterator[None]:
    """All that is computed again in the meantime shares one budget, which begins now."""
    token = _shared.set(limits or Limits())
    try:
        yield
    finally:
        _shared.reset(token)


class _Watch(TorchDispatchMode):
    def __init__(self, limits: Limits, *, refuse: bool) -> None:
        super().__init__()
        self._limits = limits
        self._refuse = refuse

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._refuse:  # others wait meanwhile
            refuse_collective(func)
            self._limits.check()
        return func(*args, **(kwargs or {}))


def refuse_collective(operator: Any) -> None:
    """Raises Communicates for one that waits for other ranks."""
    if operator.namespace in COLLECTIVES:
        raise Communicates(f"the model calls {operator.name()} in its own forward or backward")


def is_collective(called: Any) -> bool:
    """A function of torch.distributed, as `all_reduce`."""
    return str(getattr(called, "__module__", "")).startswith("torch.distributed.")


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on `device`, with what its allocator keeps; None where nothing tells."""
    if device.type == "cpu":
        try:
            rows = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
            return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("MemAvailable"))
        except (OSError, StopIteration, ValueError):
            return None
    module: Any = torch.get_device_module(device)
    try:
        free, _ = module.mem_get_info(device)
        return free + module.memory_reserved(device) - module.memory_allocated(device)
    except (AttributeError, RuntimeError, TypeError):
        return None


def _taken_by_a_step(device: torch.device) -> int:
    """Bytes that were allocated at most, beyond those that are now; 0 where the device does not tell."""
    module: Any = torch.get_device_module(device)
    try:
        return module.max_memory_allocated(device) - module.memory_allocated(device)
    except (AttributeError, RuntimeError, TypeError):
        return 0


def empty_cache(model: nn.Module | None) -> None:
    """Give what the replay left in the allocator back, as an inference engine on the same card may need it."""
    device = next((p.device for p in model.parameters()), None) if model is not None else None
    if device is not None and device.type != "cpu":
        getattr(torch.get_device_module(device), "empty_cache", lambda: None)()
