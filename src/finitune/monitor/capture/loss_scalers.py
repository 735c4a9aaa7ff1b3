"""The object that keeps the loss scale of a float16 run, whichever names its library gives to what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState

from finitune.monitor.capture.step import Capture, MicroStep
from finitune.monitor.probes.optimizers import innermost
from finitune.series import Series

NAMES: Mapping[str, tuple[str, ...]] = {
    "scale": ("cur_scale", "_scale", "scale"),
    "window": ("scale_window", "_growth_interval", "window"),
    "floor": ("min_scale", "min_loss_scale"),
}
"""In DeepSpeed, torch.amp.GradScaler, and loops of people's own."""
KEEPERS = ("loss_scaler", "loss_scale_config", "scaler")
"""Attributes of an optimizer that scales by itself: of DeepSpeed's ZeRO, of its FP16 optimizers, of people's own."""
SHORT_WINDOW = 19
"""Finite steps between two attempts to raise the scale: one step in twenty is then lost (`loss-scale-exhaustion`)."""
TIMES = 4
"""So many overflows in a row that came right after the scale had grown, this one included, are no settling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaler:
    """What it keeps can be read and set by the names `scale`, `window` and `floor`."""

    keeper: Any

    def get(self, what: str) -> float | None:
        name = self._name(what)
        value = None if name is None else getattr(self.keeper, name)
        return None if value is None else float(value)

    def put(self, what: str, value: float) -> Callable[[], None]:
        """Returns what gives back the object that was there. Raises ValueError where it keeps no such thing."""
        name = self._name(what)
        if name is None:
            raise ValueError(f"{type(self.keeper).__name__} keeps no {what}")
        own = getattr(self.keeper, name)
        new = torch.full_like(own, value) if isinstance(own, Tensor) else type(own)(value)
        setattr(self.keeper, name, new)
        return lambda: setattr(self.keeper, name, own)

    @property
    def dynamic(self) -> bool:
        return self._name("window") is not None

    def spent(self, scale: float, loss_scale: Series, skipped: Series, step: int) -> tuple[str, str] | None:
        """What it lacks where it does not settle an overflow at `scale` by itself, and the same in words."""
        if not self.dynamic:
            return "scale", "is fixed"
        floor, window = self.get("floor"), self.get("window")
        if floor is not None and scale <= floor:
            return "floor", "is at its floor"
        if window is not None and window <= SHORT_WINDOW and _overshoots(scale, loss_scale, skipped, step):
            return "window", f"is raised after every {window:g} finite steps, {TIMES} times beyond what a step bears"
        return None

    def _name(self, what: str) -> str | None:
        found = (name for name in NAMES[what] if getattr(self.keeper, name, None) is not None)
        return next((name for name in found if not callable(getattr(self.keeper, name))), None)


def scaler_of(optimizer: Any, capture: Capture) -> LossScaler | None:
    """That of DeepSpeed's optimizer or another that scales by itself, else the GradScaler that scaled the losses."""
    own = innermost(optimizer)
    keeper = next((k for name in KEEPERS if (k := getattr(own, name, None)) is not None), None)
    keeper = keeper if keeper is not None else next((m.scaler for m in capture.micro_steps if m.scaler), None)
    found = LossScaler(keeper=keeper)
    return found if keeper is not None and found.get("scale") is not None else None


def scale_seen(micro: MicroStep, scaler: Any, loss: Tensor) -> None:
    """A GradScaler has multiplied this loss, which is not bad where only the product overflows its dtype."""
    micro.scale = scale = scaler._scale.detach().clone()
    micro.scaler = scaler
    if micro.root is not None and loss.numel() == 1 and micro.root.device.type in ("cpu", "cuda"):
        wide = loss.reshape(()).double() * scale.reshape(()).to(loss.device, torch.float64)
        micro.root = torch.where(micro.root.isinf(), wide, micro.root)


def carries_scale(micro_steps: Sequence[MicroStep], optimizer: Any) -> bool:
    """Whether the gradients of these still carry the scale of a GradScaler."""
    scaler = next((micro.scaler for micro in micro_steps if micro.scaler is not None), None)
    return scaler is not None and _state(scaler, optimizer).get("stage", OptState.READY) is OptState.READY


def verdicts(scaler: Any, optimizer: Any) -> list[Tensor]:
    """What a GradScaler has found in the gradients of the present step, per device, shape [1]: 1 is an overflow. Empty
    where it has not looked at them.
    """
    return list(_state(scaler, optimizer).get("found_inf_per_device", {}).values())


def _state(scaler: Any, optimizer: Any) -> Mapping[str, Any]:
    return getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {})


def _overshoots(scale: float, loss_scale: Series, skipped: Series, step: int) -> bool:
    """The newest overflows were all at this scale, each a few finite steps after the one before."""
    lost = [at for at, value in skipped.tail(TIMES * (SHORT_WINDOW + 2)) if value > 0]
    begun = [at for at in [*lost, step] if at - 1 not in lost][-TIMES:]
    if len(begun) < TIMES or not all(0 < b - a <= SHORT_WINDOW + 2 for a, b in pairwise(begun)):
        return False
    return all(loss_scale.at(at) == scale for at in begun[:-1])
