"""Steps of weights in bfloat16 that are computed in float32, one tensor at a time, and rounded back by chance.

Rounded to the nearest, an update of less than half of the distance between two numbers is lost each time; rounded up or
down by chance, in proportion, it arrives on average (Zamirai et al., Revisiting BFloat16 training, arXiv 2010.06192).
No random number of the run is drawn, and ranks with the same gradients draw the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from finitune.monitor.probes.modules import device_of
from finitune.monitor.probes.optimizers import innermost, parameters_of
from finitune.monitor.replay.limits import free_bytes
from finitune.monitor.replay.trial import Trial

HALF = (torch.float16, torch.bfloat16)
SHARE = 0.5
"""Of the free memory, for float32 copies."""
MOMENTS = 2
LOW_BITS = 16
"""Of a float32, that a bfloat16 does not have."""
Rounding = Callable[[Tensor, int], Tensor]
"""Float32 values, of the tensor of that number, as the float32 of numbers that bfloat16 has."""


def no_room(optimizer: Any, model: nn.Module | None) -> str | None:
    """Why no float32 copies of what is trained in half precision are made; None where they fit."""
    chosen = [p for p in parameters_of(innermost(optimizer)) if p.dtype in HALF]
    needed, free = sum(p.numel() for p in chosen) * (4 + 2 * MOMENTS), free_bytes(device_of(model))
    if free is None or needed <= SHARE * free:
        return None
    return f"float32 copies take {needed / 2**30:.1f} GiB of {free / 2**30:.1f} GiB that are free"


def to_nearest(values: Tensor, place: int) -> Tensor:
    return values.bfloat16().float()


class ByChance:
    """Rounds up or down, each with the probability that leaves the mean where it is. A new draw for each `turn`."""

    def __init__(self) -> None:
        self.turn = 0

    def __call__(self, values: Tensor, place: int) -> Tensor:
        generator = torch.Generator(values.device).manual_seed((self.turn << 24) + place)
        noise = torch.randint(
            1 << LOW_BITS, values.shape, dtype=torch.int32, device=values.device, generator=generator
        )  # fmt: skip
        up_or_down = (values.view(torch.int32) + noise).bitwise_and(-1 << LOW_BITS).view(torch.float32)
        return torch.where(torch.isfinite(values), up_or_down, values)


@torch.no_grad()
def step_alone(optimizer: Any, p: nn.Parameter, place: int, rounding: Rounding) -> Tensor:
    """The optimizer's step of `p` alone, in float32: weight and moments are rounded into where they lie.

    Returns the weight as it was before rounding. Hooks on the optimizer's step do not run.
    """
    step = type(optimizer).step
    group = next(group for group in optimizer.param_groups if any(p is each for each in group["params"]))
    weight, gradient, groups = p.data, p.grad, optimizer.param_groups
    own = dict(optimizer.state.get(p, {}))
    try:
        p.grad = None
        p.data = weight.float()
        p.grad = None if gradient is None else gradient.float()
        for name, value in own.items():
            if _is_moment(value, weight):
                optimizer.state[p][name] = value.float()
        optimizer.param_groups = [{**group, "params": [p]}]
        getattr(step, "__wrapped__", step)(optimizer)
        exact = p.data
    finally:
        optimizer.param_groups = groups
        p.grad = None
        p.data = weight
        p.grad = gradient
        for number, (name, value) in enumerate(list(optimizer.state.get(p, {}).items()), 1):
            if isinstance(value, Tensor) and value.dtype == torch.float32 and value.shape == weight.shape:
                rounded = rounding(value, place + number)
                kept = own.get(name)
                optimizer.state[p][name] = rounded.to(weight.dtype) if kept is None else kept.copy_(rounded)
    weight.copy_(rounding(exact, place))
    return exact


def _is_moment(value: Any, weight: Tensor) -> bool:
    return isinstance(value, Tensor) and value.dtype == weight.dtype and value.shape == weight.shape


@torch.no_grad()
def trial_rounded(
    optimizer: Any, gradients: Sequence[tuple[nn.Parameter, Tensor | None]], rounding: Rounding
) -> Trial:  # fmt: skip
    """What one such step would do, tensor by tensor, each taken back: how far it goes along the exact update, over the
    length of that. Raises ValueError where nothing is trained in bfloat16.
    """
    along, whole, ratios = 0.0, 0.0, list[float]()
    for place, (p, gradient) in enumerate(gradients):
        if gradient is None or p.dtype != torch.bfloat16:
            continue
        weight, held = p.detach().clone(), p.grad
        state = {n: v.clone() if isinstance(v, Tensor) else v for n, v in optimizer.state.get(p, {}).items()}
        own = dict(optimizer.state.get(p, {}))
        p.grad = gradient.to(p.dtype)
        try:
            exact = step_alone(optimizer, p, place << 4, rounding)
            wanted, came = (each.double() - weight.double() for each in (exact, p.detach()))
            along += float((wanted * came).sum())
            whole += float(wanted.square().sum())
            ratios.append(float(came.norm() / weight.double().norm().clamp_min(1e-30)))
        finally:
            p.grad = held
            p.data.copy_(weight)
            if state:
                for name, value in state.items():
                    optimizer.state[p][name] = own[name].copy_(value) if isinstance(value, Tensor) else value
            else:
                optimizer.state.pop(p, None)
    if not whole > 0:
        raise ValueError("no update of a weight in bfloat16")
    return Trial(losses=(), moved=along / whole, ratio=sorted(ratios)[len(ratios) // 2])
