"""Will Adam spoil weights in the step that it is about to make, in float16, with an eps of 0 or a beta of 1?

In float16 an eps of 1e-8 is zero and squares below 6e-8 or above 65504 leave the range, so that finite gradients can
become non-finite weights or moments; with an eps of 0 a gradient that has been 0 so far does in any dtype, and with a
second beta of 1, which makes its bias correction 0, every gradient may. What torch's
Adam and AdamW compute is computed here beside them, one tensor at a time and nothing of it kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

CHUNK = 2**22
"""Elements that are computed at a time, so that what is held besides stays below 200 MB."""
KINDS = (torch.optim.Adam, torch.optim.AdamW)
_DTYPE = attrgetter("dtype")


def spoils(optimizer: Any, *, half: bool = True) -> Tensor | None:
    """Whether the next step makes any such weight or moment non-finite, shape [], on the device; None where this
    optimizer is another, or holds no float16 weights and divides by nothing that may be 0. `half` is False where none
    of its gradients is known to be float16.
    """
    if type(optimizer) not in KINDS:
        return None
    decoupled = type(optimizer) is torch.optim.AdamW
    flags = [
        _spoilt(*part, {"decoupled_weight_decay": decoupled, **group})
        for group in optimizer.param_groups
        if divides_by_zero(group) or (half and torch.float16 in map(_DTYPE, group["params"]))
        for p in group["params"]
        if (p.dtype == torch.float16 or divides_by_zero(group)) and p.grad is not None and not p.grad.is_sparse
        for part in _parts(p, p.grad, optimizer.state.get(p, {}))
    ]
    return torch.stack([flag.to(flags[0].device) for flag in flags]).any() if flags else None


def divides_by_zero(group: Mapping[str, Any]) -> bool:
    """Whether an optimizer with such settings may divide by what is exactly 0. A beta that is a tensor is not read."""
    betas = group.get("betas") or ()
    return group.get("eps") == 0 or (len(betas) > 1 and isinstance(betas[1], float | int) and betas[1] == 1)


def _parts(p: Tensor, gradient: Tensor, state: dict[str, Any]) -> Iterator[tuple[Tensor, Tensor, dict[str, Any]]]:
    """Weights, gradients and state, CHUNK elements at a time where all of them lie alike in memory."""
    moments = {name: value for name, value in state.items() if isinstance(value, Tensor) and value.shape == p.shape}
    together = all(t.is_contiguous() for t in (p, gradient, *moments.values()))
    if p.numel() <= CHUNK or not together:
        yield p.detach(), gradient.detach(), state
        return
    for start in range(0, p.numel(), CHUNK):
        part = slice(start, start + CHUNK)
        flat = {name: value.view(-1)[part] for name, value in moments.items()}
        yield p.detach().view(-1)[part], gradient.detach().view(-1)[part], {**state, **flat}


@torch.no_grad()
def _spoilt(p: Tensor, given: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """After `_single_tensor_adam` and `_fused_adam` of torch 2.6 to 2.13; fused kernels compute in float32, and so does
    an optimizer whose moments are in float32, for it steps copies of the weights.
    """
    beta1, beta2 = group["betas"]
    kept = state["exp_avg_sq"].dtype if "exp_avg_sq" in state else p.dtype
    compute = torch.float32 if group.get("fused") else kept
    weight, gradient = p.to(compute), given.to(compute)
    gradient = -gradient if group["maximize"] else gradient
    if group["weight_decay"]:
        if group["decoupled_weight_decay"]:
            weight = weight * (1 - group["lr"] * group["weight_decay"])
        else:
            gradient = gradient.add(weight, alpha=group["weight_decay"])
    step = state["step"] + 1 if "step" in state else 1.0
    mean = state["exp_avg"].to(compute) if "exp_avg" in state else torch.zeros_like(gradient)
    square = state["exp_avg_sq"].to(compute) if "exp_avg_sq" in state else torch.zeros_like(gradient)
    mean = mean.lerp(gradient, 1 - beta1)
    square = square.mul(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    first, second = 1 - beta1**step, (1 - beta2**step) ** 0.5
    largest = square
    if group["amsgrad"] and "max_exp_avg_sq" in state:
        largest = torch.maximum(state["max_exp_avg_sq"].to(compute), square)
    scale = second.to(compute) if isinstance(second, Tensor) and second.device == p.device else float(second)
    denominator = (largest.sqrt() / scale).add_(group["eps"])
    rate = group["lr"] / first
    if isinstance(rate, Tensor) and rate.device == p.device:
        weight = weight.float() - rate.float() * (mean.float() / denominator.float())
    else:
        weight = torch.addcdiv(weight, mean, denominator, value=-float(rate))
    made = (weight.to(p.dtype), mean.to(kept), square.to(kept))
    return ~torch.stack([torch.isfinite(each).all() for each in made]).all()
