"""Every operator on the device: the CPU's, on what its tensors hold, and counted as a GPU would run it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from tests.device.counting.device import NAME, CountingDevice, is_ours
from tests.device.counting.pinned import is_pinned, mark_pinned
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_set = torch.ops.aten.set_.source_Storage_storage_offset
_empty = torch.ops.aten.empty.memory_format

ALLOCATIONS = {"empty", "empty_strided"}
METADATA = {"set_", "is_set_to"}
"""Besides views: they only change or compare sizes, strides and storages."""
READS = {
    "_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique", "_unique2", "unique_dim",
    "unique_consecutive", "bincount", "histc", "multinomial",
}  # fmt: skip
"""Their CUDA kernels read a result, or the size of one, back to the host."""
MASKED = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
"""They turn a mask into indices with nonzero."""
TAKES_HOST_TENSORS = MASKED | {"_pack_padded_sequence", "_ctc_loss"}
"""Any other operator takes host tensors without dimensions only, as numbers."""
ASSERTS = MASKED | {
    "index_select", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill", "index_fill_", "gather",
    "scatter", "scatter_", "scatter_add", "scatter_add_", "take", "put", "put_", "embedding_dense_backward",
    "nll_loss_forward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss2d_backward", "binary_cross_entropy",
    "_assert_async",
}  # fmt: skip
"""Their CUDA kernels check values by an assertion on the device, where the CPU raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is known of an operator from its schema."""

    name: str
    metadata: bool
    writes: tuple[str, ...]
    """Names of the arguments that it changes."""
    returned: tuple[str | None, ...]
    """For each result the argument that it is, None where it is new."""


@functools.cache
def _plan(op: Any) -> _Plan:
    name = op.overloadpacket.__name__
    letters = {
        letter: argument.name
        for argument in op._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
        for letter in argument.alias_info.before_set
    }
    returned = [
        next((letters[letter] for letter in info.before_set if letter in letters), None) if info is not None else None
        for info in (result.alias_info for result in op._schema.returns)
    ]
    return _Plan(
        name=name,
        metadata=op.is_view or name in METADATA,
        writes=tuple(dict.fromkeys(letters.values())),
        returned=tuple(returned),
    )


def run(device: CountingDevice, op: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The kernel of `op` for the device."""
    plan = _plan(op)
    if plan.metadata:
        return op.redispatch(_CPU, *args, **kwargs)
    if plan.name == "_copy_from":
        return _copy(device, *args, **kwargs)
    if plan.name == "_to_copy" and kwargs.get("device") and kwargs["device"].type != args[0].device.type:
        return _move(device, op, args[0], kwargs)
    if plan.name in ALLOCATIONS:
        return _allocate(device, op, args, kwargs)
    if plan.name == "record_stream":
        return None
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    _count(device, op, plan, tensors, args, kwargs)
    held = functools.cache(on_host)
    host_args, host_kwargs = tree_map_only(Tensor, held, (args, kwargs))
    if host_kwargs.get("device") is not None:
        host_kwargs = {**host_kwargs, "device": torch.device("cpu")}
    try:
        result = op(*host_args, **host_kwargs)
    except (IndexError, RuntimeError) as error:
        result = _assertion(device, op, plan, error, host_args, host_kwargs)
    given = {a.name: v for a, v in zip(op._schema.arguments, args, strict=False)} | kwargs
    for written in plan.writes:
        for tensor in tree_leaves(given.get(written)):
            if isinstance(tensor, Tensor) and is_ours(tensor):
                _follow(device, tensor, held(tensor))
    return _returned(device, plan, given, result, tensors)


def convolution(device: CountingDevice, *args: Any) -> Any:
    """What torch asks of a device for every convolution."""
    return run(device, torch.ops.aten.convolution.default, *args)


def convolution_backward(
    device: CountingDevice, gradient: Tensor, x: Tensor, weight: Tensor, *geometry: Any
) -> tuple[Tensor | None, ...]:
    transposed, groups = geometry[3], geometry[5]
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    return run(device, torch.ops.aten.convolution_backward.default, gradient, x, weight, [channels], *geometry)


def _count(
    device: CountingDevice, op: Any, plan: _Plan, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    strangers = [t for t in tensors if not is_ours(t) and t.dim()]
    if strangers and plan.name not in TAKES_HOST_TENSORS:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {op} was given a tensor of shape"
            f" {tuple(strangers[0].shape)} on {strangers[0].device} beside those on {NAME}"
        )
    if plan.name in READS or (plan.name == "repeat_interleave" and kwargs.get("output_size") is None):
        device.block(plan.name)
    if plan.name in MASKED:
        for index in args[1]:
            if isinstance(index, Tensor):
                _count_index(device, plan, index, args)
    if plan.name not in ("_local_scalar_dense", "equal"):
        device.launch(str(op))


def _count_index(device: CountingDevice, plan: _Plan, index: Tensor, args: tuple[Any, ...]) -> None:
    if not is_ours(index):
        device.block("index from the host", index.nbytes)
    if index.dtype not in (torch.bool, torch.uint8):
        return
    fills = "put" in plan.name and args[2].numel() == 1 and not is_ours(args[2])
    if not fills:  # one number from the host is written through the mask itself
        device.block(f"{plan.name} by a mask")


def on_host(tensor: Tensor) -> Tensor:
    """What a tensor of the device holds, as a host tensor that shares it; any other tensor as it is."""
    if not is_ours(tensor):
        return tensor
    held = tensor.untyped_storage()._held
    empty = _empty([0], dtype=tensor.dtype, device=torch.device("cpu"))
    host = _set(empty, held, tensor.storage_offset(), tensor.size(), tensor.stride())
    host = torch._conj(host) if tensor.is_conj() else host
    return torch._neg_view(host) if tensor.is_neg() else host


def on_device(device: CountingDevice, tensor: Tensor, storage: torch.UntypedStorage | None = None) -> Tensor:
    """A tensor of the device that takes over a host tensor; `storage` is the one that holds it already."""
    storage = storage or device.adopt(tensor.untyped_storage())
    empty = torch._C._acc.create_empty_tensor([0], tensor.dtype)
    return _set.redispatch(_CPU, empty, storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _returned(device: CountingDevice, plan: _Plan, given: dict[str, Any], result: Any, tensors: list[Tensor]) -> Any:
    """The results as the caller sees them: arguments that were changed, views of arguments, or new tensors."""
    holders = {t.untyped_storage()._held._cdata: t.untyped_storage() for t in tensors if is_ours(t)}

    def wrap(tensor: Tensor) -> Tensor:
        return on_device(device, tensor, holders.get(tensor.untyped_storage()._cdata))

    if not plan.returned:
        return None
    several = len(plan.returned) > 1
    parts = [
        tree_map_only(Tensor, wrap, part) if name is None else given[name]
        for name, part in zip(plan.returned, result if several else [result], strict=True)
    ]
    return tuple(parts) if several else parts[0]


def _follow(device: CountingDevice, tensor: Tensor, held: Tensor) -> None:
    """An operator has resized what `tensor` holds."""
    storage = tensor.untyped_storage()
    if held.size() == tensor.size() and held.data_ptr() == tensor.data_ptr():
        return
    if storage._held.nbytes() != storage.nbytes() or storage._held.data_ptr() != storage.data_ptr():
        storage = device.adopt(storage._held)
    _set.redispatch(_CPU, tensor, storage, held.storage_offset(), held.size(), held.stride())


def _allocate(device: CountingDevice, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Memory that nobody has written: NaN in every floating-point format, where a GPU has whatever was there."""
    memory = op(*args, **{**kwargs, "device": torch.device("cpu")})
    memory.untyped_storage().fill_(0xFF)
    return on_device(device, memory)


def _copy(device: CountingDevice, source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    host_source, host_target = on_host(source), on_host(target)
    if is_ours(source) and is_ours(target):
        device.launch("copy_")
    elif is_ours(source):
        if non_blocking and is_pinned(target):
            value = host_source.clone()
            device.queue("copy to the host", target.nbytes, lambda: host_target.copy_(value))
            return target
        device.block("copy to the host", target.nbytes)
    elif non_blocking and is_pinned(source):
        device.queue("copy from the host", source.nbytes, lambda: None)
    else:
        device.block("copy from the host", source.nbytes)
    host_target.copy_(host_source)
    return target


def _move(device: CountingDevice, op: Any, tensor: Tensor, kwargs: dict[str, Any]) -> Tensor:
    """`tensor.to(another device)`; to the host and non-blocking it is pinned, as torch does it for CUDA."""
    onto, later = kwargs["device"], kwargs.get("non_blocking", False)
    plain = {**kwargs, "device": torch.device("cpu"), "non_blocking": False, "pin_memory": None}
    if is_ours(tensor) and onto.type != "cpu":
        return op(on_host(tensor), **{**plain, "device": onto})
    value = op(on_host(tensor), **plain)
    if not is_ours(tensor):
        if later and is_pinned(tensor):
            device.queue("copy from the host", tensor.nbytes, lambda: None)
        else:
            device.block("copy from the host", tensor.nbytes)
        return on_device(device, value)
    if not later:
        device.block("copy to the host", value.nbytes)
        return value
    target = mark_pinned(torch.empty_like(value))
    device.queue("copy to the host", value.nbytes, lambda: target.copy_(value))
    return target


def _assertion(
    device: CountingDevice, op: Any, plan: _Plan, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result where a kernel failed on values: of the right shape, and zero. Any other error is raised."""
    if plan.name not in ASSERTS or isinstance(error, NotImplementedError) or "not implemented for" in str(error):
        raise error
    try:
        shapes = op(*tree_map_only(Tensor, lambda t: t.to("meta"), args), **kwargs)
    except Exception:
        raise error from None  # shapes or dtypes that do not fit: the host sees that
    device.fail(str(error))
    return tree_map_only(Tensor, lambda t: torch.zeros_like(t, device="cpu"), shapes)
