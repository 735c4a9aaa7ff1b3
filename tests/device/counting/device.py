"""The state of the device: bytes alive, work that was queued, and who is counting."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.device.counting.trace import ASYNC, BLOCKING, KERNEL, QUERY, Trace
from torch import Tensor

NAME = "counting"
DEVICE = torch.device("privateuseone", 0)  # NAME from `install` on
LAG = 16
TOTAL = 2**34


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queued:
    """A copy whose result is not yet in the host's memory."""

    position: int
    arrive: Callable[[], object]


@dataclass(slots=True, kw_only=True)
class Allocation:
    """The bytes that a storage takes; none while it is resized to nothing."""

    size: int


class CountingDevice:
    """There is one in a process, made by `install`.

    `total` is the memory in bytes, `lag` the number of kernels that the device is behind the host, `live` and `peak`
    are bytes of storages.
    """

    name = NAME

    def __init__(self) -> None:
        self.total = TOTAL
        self.lag = LAG
        self.live = self.peak = 0
        self._traces: list[Trace] = []
        self._queued: list[_Queued] = []
        self._position = self._arrived = 0
        self._fault: str | None = None
        self._fault_at = 0
        self._lost = False
        self._capturing = self._capture_broken = False

    # What a test asks for.

    @contextlib.contextmanager
    def record(self, package: Path | None = None) -> Iterator[Trace]:
        """Record what happens inside; `package` is the directory whose lines are named as owners.

        Cyclic garbage is collected before and not during it, so that bytes do not depend on when that happens.
        """
        outermost = not self._traces
        if outermost:
            gc.collect()
        collecting = gc.isenabled()
        gc.disable()
        trace = Trace(package, self.live)
        self._traces.append(trace)
        try:
            yield trace
        finally:
            self._traces.remove(trace)
            trace.after = self.live
            if collecting:
                gc.enable()

    @contextlib.contextmanager
    def memory_of(self, total: int) -> Iterator[None]:
        """Have `total` bytes inside; beyond them torch.OutOfMemoryError is raised."""
        before, self.total = self.total, total
        try:
            yield
        finally:
            self.total = before

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Capture a graph inside: whatever makes the host wait raises, and breaks the capture, as on CUDA."""
        self._capturing, self._capture_broken = True, False
        try:
            yield
        finally:
            self._capturing = False
        if self._capture_broken:
            raise torch.AcceleratorError("operation failed due to a previous error during capture")

    def restart(self) -> None:
        """What a new process does for a lost device."""
        self._fault, self._lost, self._capture_broken = None, False, False
        self._queued.clear()
        self._arrived = self._position

    # What the device is asked to do.

    @property
    def is_capturing(self) -> bool:
        return self._capturing

    def adopt(self, held: torch.UntypedStorage) -> torch.UntypedStorage:
        """A storage of the device that holds `held`, which lies in host memory."""
        allocation = Allocation(size=held.nbytes())
        self.allocate(allocation.size)
        storage = torch._C._construct_storage_from_data_pointer(held.data_ptr(), DEVICE, allocation.size)
        storage._held = held  # torch keeps the Python object of a storage as long as the storage
        storage._allocation = allocation
        weakref.finalize(storage, lambda: self.free(allocation.size)).atexit = False
        return storage

    def allocate(self, size: int) -> None:
        if self.live + size > self.total:
            raise torch.OutOfMemoryError(
                f"{NAME}: out of memory. Tried to allocate {size} bytes; {self.live} of {self.total} are in use"
            )
        self.live += size
        self.peak = max(self.peak, self.live)
        for trace in self._traces:
            trace.peak = max(trace.peak, self.live)

    def free(self, size: int) -> None:
        self.live -= size

    def launch(self, what: str) -> None:
        """Run a kernel."""
        if self._lost:
            self._raise_fault()
        self.note(KERNEL, what)
        self._advance()

    def block(self, what: str, nbytes: int = 0) -> None:
        """Make the host wait until all that was queued is done."""
        self._not_while_capturing()
        self.note(BLOCKING, what, nbytes)
        self.finish()

    def finish(self) -> None:
        self._arrive(self._position)
        if self._fault is not None:
            self._raise_fault()

    def queue(self, what: str, nbytes: int, arrive: Callable[[], object]) -> None:
        """Queue a copy; `arrive` writes its result into the host's memory."""
        if self._lost:
            self._raise_fault()
        self.note(ASYNC, what, nbytes)
        self._advance()
        self._queued.append(_Queued(position=self._position, arrive=arrive))

    def fail(self, message: str) -> None:
        """An assertion in a kernel: nobody knows before the host waits."""
        if self._fault is None:
            self._fault, self._fault_at = message, self._position

    @property
    def position(self) -> int:
        """How much has been queued."""
        return self._position

    def has_reached(self, position: int, what: str) -> bool:
        self._not_while_capturing()
        self.note(QUERY, what)
        if self._lost:
            self._raise_fault()
        return self._arrived >= position

    def wait_for(self, position: int, what: str) -> None:
        """Make the host wait until the device is there; it does not block where that has happened."""
        if self.has_reached(position, what):
            return
        self.note(BLOCKING, what)
        self._arrive(position)
        if self._fault is not None and self._fault_at <= position:
            self._raise_fault()

    def _advance(self) -> None:
        self._position += 1
        self._arrive(self._position - self.lag)

    def _arrive(self, position: int) -> None:
        """Copies that were queued up to `position` arrive; those behind a failed kernel never do."""
        self._arrived = max(self._arrived, position)
        while self._queued and self._queued[0].position <= self._arrived:
            copy = self._queued.pop(0)
            if self._fault is None or copy.position <= self._fault_at:
                copy.arrive()

    def note(self, kind: str, what: str, nbytes: int = 0) -> None:
        for trace in self._traces:
            trace.note(kind, what, nbytes)

    def _not_while_capturing(self) -> None:
        if self._capturing:
            self._capture_broken = True
            raise torch.AcceleratorError("operation not permitted when stream is capturing")

    def _raise_fault(self) -> None:
        self._lost = True
        raise torch.AcceleratorError(f"{NAME} error: device-side assert triggered ({self._fault})")


def is_ours(tensor: Tensor) -> bool:
    return tensor.device.type == NAME
