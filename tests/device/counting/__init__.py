"""A device in pure Python, `counting:0`, that stands in for a GPU where there is none.

Its tensors are ordinary torch tensors of torch's PrivateUse1 backend, so parameters, views, autograd, foreach and
fused optimizers, GradScaler and autocast take the paths that they take on CUDA, and backward runs in a thread of the
device. What they hold lies in host memory and every operator is the CPU's: numbers are those of a CPU, bit for bit.

The device counts what a GPU would make slow or full: kernels, reads for which the host waits, copies that are
queued, bytes alive. It is late where a GPU is late: a queued copy arrives after `lag` more kernels or at the next
blocking read, and an index out of range is reported by the next blocking read, after which the device is lost.
Memory that nobody has written holds NaN.

What it is not: there is one device and one stream (others are names only); a pinned source is read when its copy is
queued; temporary memory inside an operator is not counted, nor is what an allocator adds; random numbers come from
the CPU's generator; sparse and quantised tensors, recurrent layers, fused attention and compilation are not there. An
exception that a hook raises in a backward ends the process, because torch's guard for such devices does not survive it.

`install()` once, before the first backward of the process, because autograd then starts its threads.
"""

from __future__ import annotations

from tests.device.counting.device import TOTAL as DEVICE_TOTAL
from tests.device.counting.device import CountingDevice
from tests.device.counting.install import install
from tests.device.counting.trace import ASYNC, BLOCKING, COLLECTIVE, KERNEL, QUERY, Event, Trace, added

__all__ = [
    "ASYNC", "BLOCKING", "COLLECTIVE", "DEVICE_TOTAL", "KERNEL", "QUERY", "CountingDevice", "Event", "Trace", "added",
    "install",
]  # fmt: skip
