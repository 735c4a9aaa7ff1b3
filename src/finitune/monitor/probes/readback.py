"""Numbers on their way from the device to the host: started now, read later, with nothing to wait for in between."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Readback:
    """A copy of `values`, shape [n], into pinned memory, on the current stream of its device."""

    def __init__(self, values: Tensor) -> None:
        device = values.device
        self._event: Any = None
        if device.type == "cpu":
            self._host = values.detach().clone()
            return
        module: Any = torch.get_device_module(device)
        self._host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
        self._host.copy_(values, non_blocking=True)
        self._event = module.Event()
        self._event.record()

    def read(self) -> list[float]:
        """The numbers; waits where the device has not come so far yet."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return self._host.tolist()
