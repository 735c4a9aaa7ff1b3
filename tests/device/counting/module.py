"""`torch.counting`: what torch.cuda offers for its device, as far as this device has it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from tests.device.counting.device import DEVICE, CountingDevice
from torch import Tensor
from typing_extensions import Self


class Stream:
    """A name; the work of all streams is done in the order in which it is queued."""

    def __init__(self, device: Any = None, *, priority: int = 0, of: CountingDevice) -> None:
        self.device = DEVICE
        self._device = of

    def synchronize(self) -> None:
        self._device.wait_for(self._device.position, "Stream.synchronize")

    def query(self) -> bool:
        return self._device.has_reached(self._device.position, "Stream.query")

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event(of=self._device)
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        pass

    def wait_stream(self, stream: Stream) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Event:
    """A place in the queue of the device."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, *, of: CountingDevice) -> None:
        self._device = of
        self._position = 0

    def record(self, stream: Stream | None = None) -> None:
        self._position = self._device.position

    def wait(self, stream: Stream | None = None) -> None:
        pass

    def query(self) -> bool:
        return self._device.has_reached(self._position, "Event.query")

    def synchronize(self) -> None:
        self._device.wait_for(self._position, "Event.synchronize")

    def elapsed_time(self, end: Event) -> float:
        return 0.0


class CountingModule:
    """What torch registers as `torch.counting` and gives out by `torch.get_device_module`."""

    def __init__(self, device: CountingDevice) -> None:
        self._device = device
        self._stream = Stream(of=device)

    # Streams and events.

    def Stream(self, device: Any = None, *, priority: int = 0) -> Stream:  # noqa: N802
        return Stream(of=self._device)

    def Event(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:  # noqa: N802
        return Event(of=self._device)

    def current_stream(self, device: Any = None) -> Stream:
        return self._stream

    default_stream = current_stream

    @contextlib.contextmanager
    def stream(self, stream: Stream | None) -> Iterator[None]:
        yield

    def synchronize(self, device: Any = None) -> None:
        self._device.wait_for(self._device.position, "synchronize")

    def is_current_stream_capturing(self) -> bool:
        return self._device.is_capturing

    # Memory, in bytes.

    def memory_allocated(self, device: Any = None) -> int:
        return self._device.live

    memory_reserved = memory_allocated

    def max_memory_allocated(self, device: Any = None) -> int:
        return self._device.peak

    max_memory_reserved = max_memory_allocated

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        self._device.peak = self._device.live

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Free and total."""
        return self._device.total - self._device.live, self._device.total

    def empty_cache(self) -> None:
        pass

    # Random numbers come from the CPU's generator.

    def manual_seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        pass  # torch.manual_seed calls it after the CPU's

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_rng_state_all(self) -> list[Tensor]:
        return [self.get_rng_state()]

    def set_rng_state_all(self, states: list[Tensor]) -> None:
        self.set_rng_state(states[0])

    # The device itself.

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def init(self) -> None:
        pass

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        pass

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        yield

    def get_device_name(self, device: Any = None) -> str:
        return "counting device"

    def _is_in_bad_fork(self) -> bool:
        return False
