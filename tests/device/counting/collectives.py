"""Collectives: every one is counted, whoever starts it; tensors of the device are exchanged in host memory by gloo."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from tests.device.counting.device import CountingDevice, is_ours
from tests.device.counting.kernels import on_host
from tests.device.counting.trace import COLLECTIVE
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future
from torch.utils._pytree import tree_leaves, tree_map_only

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def count_collectives(device: CountingDevice, library: torch.library.Library) -> None:
    """At the operators by which Python, the reducer of DistributedDataParallel and DTensor call a process group."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        if namespace == "c10d":
            op = getattr(torch.ops.c10d, rest).default
            library.impl(rest, functools.partial(_collective, device, op), "BackendSelect")


def _collective(device: CountingDevice, op: Any, /, *args: Any, **kwargs: Any) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    device.note(COLLECTIVE, op.overloadpacket.__name__, sum(t.nbytes for t in tensors))
    on_device = {id(t): t for t in tensors if is_ours(t)}
    hosts = {key: on_host(t) for key, t in on_device.items()}
    args, kwargs = tree_map_only(Tensor, lambda t: hosts.get(id(t), t), (args, kwargs))
    result = op.redispatch(_CPU, *args, **kwargs)
    if not on_device or not isinstance(result, tuple):
        return result
    exchanged, work = result
    dist.Work.unbox(work).wait()
    back = {id(host): on_device[key] for key, host in hosts.items()}
    exchanged = tree_map_only(Tensor, lambda t: back.get(id(t), t), exchanged)
    return exchanged, _done(exchanged).boxed()


def _done(exchanged: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(exchanged)
    return _create_work_from_future(future)
