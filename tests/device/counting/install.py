"""Make the device known to torch, once in a process."""

from __future__ import annotations

import functools
from typing import Any

import torch
from tests.device.counting.autocast import emulate_autocast
from tests.device.counting.collectives import count_collectives
from tests.device.counting.device import NAME, CountingDevice
from tests.device.counting.kernels import convolution, convolution_backward, run
from tests.device.counting.module import CountingModule
from tests.device.counting.pinned import emulate_pinned_memory
from torch.utils import backend_registration

_ACCELERATOR = (
    "synchronize", "current_stream", "memory_allocated", "memory_reserved", "max_memory_allocated",
    "max_memory_reserved", "reset_peak_memory_stats", "empty_cache",
)  # fmt: skip


@functools.cache
def install() -> CountingDevice:
    """The device of this process; torch has room for one, and cannot take it away again."""
    device = CountingDevice()
    module = CountingModule(device)
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=module)
    _register_kernels(device)
    emulate_autocast(_library("aten"))
    emulate_pinned_memory(_library("aten"))
    if torch.distributed.is_available():
        count_collectives(device, _library("c10d"))
    _complete_torch(device, module)
    return device


@functools.cache
def _library(namespace: str) -> torch.library.Library:
    return torch.library.Library(namespace, "IMPL")  # its kernels go when it goes


def _register_kernels(device: CountingDevice) -> None:
    """Ours for each operator that has a kernel of the CPU's or several tensors at a time, as on CUDA; what torch
    composes of others for every device stays composed.
    """
    _library("_").fallback(functools.partial(run, device), "PrivateUse1")
    _library("_").fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        if namespace != "aten":
            continue
        packet, _, overload = rest.partition(".")
        if (
            packet.startswith("_foreach_")
            or packet == "_to_copy"
            or torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
        ):
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            _library("aten").impl(rest, functools.partial(run, device, op), "PrivateUse1")
    for lazy in ("Conjugate", "Negative"):  # resolved by a copy, so the copy itself reads them as they are
        _library("aten").impl("_copy_from", torch.library.fallthrough_kernel, lazy)
    for name, kernel in (("convolution", convolution), ("convolution_backward", convolution_backward)):
        _library("aten").impl(f"{name}_overrideable", functools.partial(kernel, device), "PrivateUse1")


def _complete_torch(device: CountingDevice, module: CountingModule) -> None:
    """What torch does in C++ for its own devices."""
    for name in _ACCELERATOR:
        setattr(torch.accelerator, name, getattr(module, name))
    torch.accelerator.get_memory_info = module.mem_get_info
    for name in ("Event", "Stream"):
        setattr(torch, name, _of_either(getattr(torch, name), getattr(module, name)))
    for name, ours in (("size", _size), ("nbytes", _size), ("resize_", _resize), ("clone", _clone)):
        theirs = getattr(torch.UntypedStorage, name)
        setattr(torch.UntypedStorage, name, _for_ours(theirs, functools.partial(ours, device)))
    torch.serialization.register_package(
        5,  # before the one of any PrivateUse1 backend, which asks a C++ allocator
        lambda storage: f"{NAME}:0" if storage.device.type == NAME else None,
        lambda storage, location: _loaded(device, storage, location),
    )


def _for_ours(theirs: Any, ours: Any) -> Any:
    """A method of UntypedStorage that is another one for storages of the device."""

    @functools.wraps(theirs)
    def method(storage: torch.UntypedStorage, *args: Any) -> Any:
        return (ours if storage.device.type == NAME else theirs)(storage, *args)

    return method


def _size(_device: CountingDevice, storage: Any) -> int:
    return storage._allocation.size


def _clone(device: CountingDevice, storage: Any) -> Any:
    device.launch("copy_")
    return device.adopt(storage._held.clone())


def _resize(device: CountingDevice, storage: Any, size: int) -> Any:
    """As FSDP does it: to nothing and back. The memory behind it stays, only the count changes."""
    if size not in (0, storage._held.nbytes()):
        raise NotImplementedError(f"a storage of {storage._held.nbytes()} bytes resized to {size}")
    device.free(storage._allocation.size)
    storage._allocation.size = 0
    device.allocate(size)
    storage._allocation.size = size
    return storage


def _of_either(theirs: type, ours: Any) -> type:
    """torch.Event and torch.Stream, which ask a C++ backend; without a device they are of the accelerator."""

    def new(cls: type, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        wanted = cls is either and (device is None or torch.device(device).type == NAME)
        return ours(*args, **kwargs) if wanted else theirs.__new__(cls, device, *args, **kwargs)

    either = type(theirs.__name__, (theirs,), {"__new__": new})
    return either


def _loaded(device: CountingDevice, storage: Any, location: str) -> Any:
    if not str(location).startswith(NAME):
        return None
    device.block("copy from the host", storage.nbytes())
    return device.adopt(storage)
