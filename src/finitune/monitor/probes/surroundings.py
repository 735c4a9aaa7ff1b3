"""What a forward depends on beside its arguments: the states of random numbers and of autocast, on every device."""

from __future__ import annotations

import ctypes
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def accelerator() -> str | None:
    """The device type beside the CPU that this process can use: `cuda`, `xpu`, `npu`; None where there is none."""
    if torch.cuda.is_available():
        return "cuda"
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found.type if found is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Randomness:
    """Random number states as they were right before a forward."""

    cpu: Tensor
    devices: dict[int, Tensor]
    python: tuple[Any, ...]
    numpy: Any

    @staticmethod
    def now(*, numpy: bool = True) -> Randomness:
        """Those of numpy take four times as long as the others together, where it has drawn since they were read."""
        device = accelerator()
        module: Any = torch.get_device_module(device or "cpu")
        begun = device is not None and getattr(module, "is_initialized", lambda: True)()
        return Randomness(
            cpu=torch.get_rng_state(),
            devices={i: module.get_rng_state(i) for i in range(module.device_count())} if begun else {},
            python=random.getstate(),
            numpy=_numpy_state(sys.modules["numpy"].random) if numpy and "numpy" in sys.modules else None,
        )

    def torch_has_drawn(self) -> bool:
        """Whether torch has drawn random numbers since, on any device."""
        now = Randomness.now()
        states, known = [now.cpu, *now.devices.values()], [self.cpu, *self.devices.values()]
        return len(states) != len(known) or not all(map(torch.equal, states, known))

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        for number, state in self.devices.items():
            torch.get_device_module(accelerator()).set_rng_state(state, number)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)


class _Numpy(threading.local):
    """The state that was read last, and the memory that it was read from."""

    memory = b""
    state: Any = None


_NUMPY = _Numpy()
MT19937_BYTES = 624 * 4 + 4
"""Of the generator of `numpy.random`: its key, and the place in it."""


def _numpy_state(random: Any) -> Any:
    """What `numpy.random.get_state()` returns, a tuple that it makes of 624 numbers one by one; the one that it has
    returned before, where nothing was drawn since. Half of what a normal variate was made of is kept outside of the
    generator: where there is such a half it may have been used, which the generator does not show.
    """
    generator = random.get_bit_generator()
    if type(generator).__name__ != "MT19937":
        return random.get_state(legacy=False)  # else it warns
    memory = ctypes.string_at(generator.ctypes.state_address, MT19937_BYTES)
    if memory != _NUMPY.memory or _NUMPY.state[3]:
        _NUMPY.memory, _NUMPY.state = memory, random.get_state()
    return _NUMPY.state


@contextmanager
def randomness_kept() -> Iterator[None]:
    """Afterwards all random number states are as before: libraries that are imported on the way may draw too."""
    before = Randomness.now()
    try:
        yield
    finally:
        before.restore()


@dataclass(frozen=True, slots=True, kw_only=True)
class Autocast:
    """The autocast state per device type, as it was right before a forward."""

    states: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool

    @staticmethod
    def now() -> Autocast:
        device = accelerator()
        devices = ("cpu", device) if device and torch.amp.is_autocast_available(device) else ("cpu",)
        return Autocast(
            states=tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices),
            cache=torch.is_autocast_cache_enabled(),
        )

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype that is on, None when autocast is off."""
        return next((dtype for _, enabled, dtype in self.states if enabled), None)

    @contextmanager
    def restored(self, dtype: torch.dtype | None = None, *, off: bool = False) -> Iterator[None]:
        """The same state again; with `dtype` in that dtype instead, or switched off."""
        with ExitStack() as stack:
            for device, enabled, own in self.states:
                on = enabled and not off
                context = torch.autocast(device, dtype=dtype or own, enabled=on, cache_enabled=self.cache)
                stack.enter_context(context)
            yield
