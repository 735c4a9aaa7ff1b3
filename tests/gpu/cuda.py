"""The first CUDA device, measured as `tests/device/counting` measures its own: waits of the host, and bytes."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tests.device.counting.trace import BLOCKING, Trace


class CudaTrace(Trace):
    """Kernels and queued copies are not seen. Whoever sets `peak` begins anew."""

    @property
    def peak(self) -> int:
        return torch.cuda.memory_stats().get("requested_bytes.all.peak", 0)

    @peak.setter
    def peak(self, live: int) -> None:
        torch.cuda.reset_peak_memory_stats()


class Cuda:
    """`live` are the bytes that were asked for, without what the allocator adds."""

    name = "cuda"

    @property
    def live(self) -> int:
        return torch.cuda.memory_stats().get("requested_bytes.all.current", 0)  # none before the first

    @contextlib.contextmanager
    def record(self, package: Path | None = None) -> Iterator[Trace]:
        """Record where the host waits; `package` is the directory whose lines are named as owners."""
        gc.collect()
        gc.disable()
        trace = CudaTrace(package, self.live)
        try:
            with _waits(lambda what: trace.note(BLOCKING, what, 0)):
                yield trace
        finally:
            gc.enable()
            trace.after = self.live


@contextlib.contextmanager
def _waits(note: Callable[[str], object]) -> Iterator[None]:
    """torch warns where the host waits for a stream; it does not where it waits for an event."""
    synchronize = torch.cuda.Event.synchronize

    def waits(event: torch.cuda.Event) -> None:
        if not event.query():
            note("Event.synchronize")
        synchronize(event)

    def warned(message: Warning | str, *_: Any, **__: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            note("wait")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("warn")
        warnings.simplefilter("always")
        warnings.showwarning = warned
        torch.cuda.Event.synchronize = waits  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            torch.cuda.Event.synchronize = synchronize
            torch.cuda.set_sync_debug_mode("default")
