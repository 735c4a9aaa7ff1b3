"""The ranks that train one model together: their group, and the one small reduction in which they decide.

The group is the model's own: of DistributedDataParallel, FSDP, a DTensor's mesh or DeepSpeed. Where several processes
are connected and no group is known there is no collective, and a rank never skips a step alone.

A model that is sharded (FSDP 2, tensor parallel: its tensors are DTensors; FSDP 1: flat parameters; ZeRO 3: its
parameters are empty and carry a `ds_tensor`) is measured shard by shard, so what one rank sees is a part of the whole.
Whatever runs such a model must be called by every rank of the group alike.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _disabled_torch_function_impl

from finitune.monitor.probes.gc_objects import living

_signature = functools.cache(inspect.signature)
ENGINES = ("DistributedDataParallel", "FullyShardedDataParallel")


def rank_and_world() -> tuple[int, int]:
    """Rank of this process and how many there are, from torch.distributed or from the launcher's environment."""
    if connected():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def connected() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The ranks that decide together about one optimizer. Each method is called by all of them alike."""

    handle: Any = None
    """A process group; None for all ranks, or where there is only this one."""
    size: int = 1
    known: bool = True
    """False where processes are connected and nothing says which of them train this model."""
    engine: Callable[[], Any] = lambda: None
    """The DistributedDataParallel whose ranks they are."""
    replicated: bool = True
    """Each rank is to hold the same weights; False where the loop has only been seen to sum something else."""
    sharded: bool = False
    """The gradients that one rank steps with are a part of the whole."""
    split: bool = False
    """The model itself is held in parts, so that the ranks can only run it together."""

    def reduced(self, values: Tensor, operation: str = "SUM") -> Tensor:
        """The sum, or the MAX, over the group, on the device of `values`: one collective, or none where it is alone."""
        if self.size == 1 or not self.known:
            return values
        there = values.to(self._beside(values.device))
        torch.distributed.all_reduce(there, getattr(torch.distributed.ReduceOp, operation), group=self.handle)
        return there.to(values.device)

    def agree(self, *flags: bool, device: torch.device | str = "cpu") -> tuple[bool, ...]:
        """Each flag is True when any rank says so."""
        if self.size == 1 or not self.known:
            return flags
        values = torch.tensor([float(flag) for flag in flags], device=self._device(device))
        return tuple(value > 0 for value in self.reduced(values, "MAX").tolist())

    def first(self, flag: bool, device: torch.device | str = "cpu") -> int | None:  # noqa: FBT001
        """The lowest rank of the group that says so, None when none does."""
        own = torch.distributed.get_rank(self.handle) if self.size > 1 and self.known else 0
        if self.size == 1 or not self.known:
            return 0 if flag else None
        values = torch.tensor([float(self.size if not flag else own)], device=self._device(device))
        (lowest,) = self.reduced(values, "MIN").tolist()
        return None if lowest >= self.size else int(lowest)

    def at_a_step(self) -> Group:
        """The same where all of them come to the step that begins now. Where a batch has left out a part of the model,
        DistributedDataParallel may still wait for its gradients on another rank: there no collective may come between.
        """
        return self if _has_reduced(self.engine()) else replace(self, known=False)

    @property
    def sees_alike(self) -> bool:
        """Each rank holds all weights, as every other, and sees for itself what an update has made of them."""
        return self.size == 1 or (self.replicated and not self.sharded)

    @property
    def is_unknown(self) -> bool:
        """There are several ranks, and it is not known which train together: none may act alone."""
        return self.size > 1 and not self.known

    def first_of(self, *flags: bool, device: torch.device | str = "cpu") -> int | None:
        """The same for the first of the flags that some rank has set; all ranks give as many."""
        found = (self.first(flag, device) for flag in flags)
        return next((rank for rank in found if rank is not None), None)

    @property
    def rank(self) -> int:
        """Within the group, from 0."""
        return torch.distributed.get_rank(self.handle) if self.size > 1 and self.known else 0

    def text(self, text: str, source: int, device: torch.device | str = "cpu") -> str:
        """`text` of the rank `source` of the group, on every rank."""
        if self.size == 1 or not self.known:
            return text
        where = self._device(device)
        data = torch.tensor(list(text.encode()) if self.rank == source else [], dtype=torch.uint8, device=where)
        length = self.reduced(torch.tensor([float(len(data))], device=where), "MAX")
        shared = torch.zeros(int(length), device=where)
        shared[: len(data)] = data.float()
        return bytes(int(value) for value in self.reduced(shared, "SUM").tolist()).decode()

    def wait(self, device: torch.device | str = "cpu") -> None:
        """Go on when every rank has come here."""
        self.agree(*(False,), device=device)

    def _device(self, device: torch.device | str) -> torch.device:
        """Where the group's backend can reduce: a gloo group on the CPU, others on the device of the model."""
        backend = str(torch.distributed.get_backend(self.handle))
        return torch.device("cpu") if backend == "gloo" else self._beside(torch.device(device))

    def _beside(self, device: torch.device) -> torch.device:
        """The accelerator where the numbers are on the CPU, as of an offloaded optimizer, and the backend is not."""
        backend = str(torch.distributed.get_backend(self.handle))
        if device.type != "cpu" or any(name in backend for name in ("gloo", "mpi", "fake")):
            return device
        return torch.accelerator.current_accelerator() or device


ALONE = Group()


def group_of(parameters: Sequence[Tensor], optimizer: Any = None) -> Group:
    """The group that trains `parameters`. Calls no collective; looks for wrapped models in this process."""
    if not connected() or torch.distributed.get_world_size() == 1:
        split = is_sharded([p for p in parameters if not hasattr(p, "ds_tensor")])  # of ZeRO 3 one rank holds it all
        return Group(sharded=split, split=split)
    own = getattr(optimizer, "dp_process_group", None) or _zero_group(parameters)
    if own is not None:
        split = is_sharded(parameters)
        return _group(own, sharded=split or _shards_gradients(optimizer), split=split)
    mesh = next((p.device_mesh for p in parameters if hasattr(p, "device_mesh")), None)  # pyright: ignore[reportAttributeAccessIssue]
    if mesh is not None:
        if mesh.size() == torch.distributed.get_world_size():
            return _group(None, sharded=True, split=True)
        handle = mesh.get_group() if mesh.ndim == 1 else mesh._flatten().get_group()
        return _group(handle, sharded=True, split=True)
    wrapped = _wrapped(parameters)
    if wrapped is not None:
        joining = getattr(getattr(wrapped, "_join_config", None), "enable", False)
        if joining:  # ranks whose data has ended take part in the model's own collectives only
            return Group(size=torch.distributed.get_world_size(wrapped.process_group), known=False)
        split = type(wrapped).__name__ == "FullyShardedDataParallel"
        return replace(_group(wrapped.process_group, sharded=split, split=split), engine=weakref.ref(wrapped))
    return Group(size=torch.distributed.get_world_size(), known=False)


def _group(handle: Any, *, sharded: bool, split: bool) -> Group:
    return Group(handle=handle, size=torch.distributed.get_world_size(handle), sharded=sharded, split=split)


def _has_reduced(engine: Any) -> bool:
    """All gradients of the last backward; True where nothing tells. In a backward the reducer is locked."""
    check = getattr(engine, "_check_reducer_finalized", None)
    try:
        if check is not None and torch._C._current_autograd_node() is None:
            check()
    except RuntimeError:  # which its next forward will raise
        return False
    return True


def _zero_group(parameters: Sequence[Tensor]) -> Any:
    return next((p.ds_process_group for p in parameters if hasattr(p, "ds_process_group")), None)  # pyright: ignore[reportAttributeAccessIssue]


def _shards_gradients(optimizer: Any) -> bool:
    return hasattr(optimizer, "averaged_gradients") or hasattr(optimizer, "fp32_groups_gradients")


def _wrapped(parameters: Sequence[Tensor]) -> Any:
    """The outermost DistributedDataParallel or FSDP 1 that holds any of them."""
    wanted = {id(p) for p in parameters}
    engines = [thing for thing in living() if type(thing).__name__ in ENGINES and issubclass(type(thing), nn.Module)]
    holding = [engine for engine in engines if any(id(p) in wanted for p in engine.parameters())]
    return max(holding, key=lambda engine: sum(1 for _ in engine.modules()), default=None)


def is_sharded(tensors: Sequence[Tensor]) -> bool:
    """True when some of these tensors are held in parts."""
    return any(hasattr(t, "to_local") or hasattr(t, "ds_tensor") or hasattr(t, "_is_flat_param") for t in tensors)


def local(tensor: Tensor) -> Tensor:
    """The shard that this rank holds; of a class that computes in its own way, as an image that carries the names of
    its files, a plain tensor of the same numbers; any other as it is.
    """
    if type(tensor) is Tensor:
        return tensor
    if hasattr(tensor, "to_local"):
        sharded: Any = tensor
        return sharded.to_local()
    own: Tensor = getattr(tensor, "ds_tensor", tensor)
    return own.as_subclass(Tensor) if _computes_itself(type(own)) else own


@functools.cache
def _computes_itself(kind: type[Tensor]) -> bool:
    """Its class overrides what the functions of torch do, and it is no wrapper around other tensors."""
    own: Any = kind.__torch_function__
    plain = own is _disabled_torch_function_impl or getattr(own, "__func__", None) is Tensor.__torch_function__.__func__
    return not plain and not hasattr(kind, "__tensor_flatten__")


def whole(tensor: Tensor) -> Tensor:
    """All of it, gathered; a tensor that is not sharded as it is. Every rank must take part."""
    sharded: Any = tensor
    if hasattr(tensor, "ds_tensor"):
        with sys.modules["deepspeed"].zero.GatheredParameters([tensor]):
            return tensor.detach().clone()
    return sharded.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def copies(tensor: Tensor, size: int) -> float:
    """How many of the `size` ranks of a sharded group hold the same numbers: 1 for a plain tensor, which is a part."""
    if not hasattr(tensor, "to_local"):
        return 1.0
    sharded: Any = tensor
    mesh = sharded.device_mesh
    parts = [mesh.size(place) for place, how in enumerate(sharded.placements) if not how.is_replicate()]
    return size / math.prod(parts)


def given_to_others(collective: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Of a call of torch.distributed the tensor that this rank gives, None where there is none, and the group."""
    with suppress(TypeError):  # which the call itself raises
        given = _signature(collective).bind(*args, **kwargs).arguments
        own = given.get("input_tensor", given.get("tensor"))
        return own if isinstance(own, Tensor) else None, given.get("group")
    return None, None
