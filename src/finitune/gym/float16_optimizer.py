"""Training in pure float16 with float32 master weights: the optimizer that DeepSpeed wraps around the user's.

    model.half()
    optimizer = Float16Optimizer(model.parameters(), lambda masters: AdamW(masters, lr=1e-5), clip=1.0)
    loss = model(**batch).loss
    optimizer.backward(loss)    # loss * scale, so that small gradients survive float16
    optimizer.step()            # overflow: skip and shrink the scale; else unscale, clip, step, copy back
    optimizer.zero_grad()

`param_groups` holds the float16 parameters of the model, where the gradients are, so whoever looks at the optimizer
from outside sees what it trains. The masters, their gradients and the moments belong to `inner`, in float32.
As in DeepSpeed, an overflow does not touch the weights, the moments or the scheduler's optimizer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from finitune.gym.loss_scale import DynamicLossScaler


class Float16Optimizer(Optimizer):
    """An optimizer of float16 `parameters`; `make(masters)` builds the inner one over float32 copies of them.

    After `step()`: `overflow` says whether it was skipped, `grad_norm` is the L2 norm before clipping, unscaled
    (inf or nan on overflow). Learning rates live in `param_groups` and are handed to the inner optimizer.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        make: Callable[[list[Any]], Optimizer],
        *,
        clip: float | None = None,
        scaler: DynamicLossScaler | None = None,
    ) -> None:
        params = [parameter for parameter in parameters if parameter.requires_grad]
        masters = [nn.Parameter(parameter.detach().float()) for parameter in params]
        self.inner = make(masters)
        self.scaler = scaler or DynamicLossScaler()
        self.clip = clip
        self.overflow = False
        self.grad_norm = 0.0
        half_of = dict(zip(masters, params, strict=True))
        groups = [group | {"params": [half_of[m] for m in group["params"]]} for group in self.inner.param_groups]
        super().__init__(groups, self.inner.defaults)

    @property
    def loss_scale(self) -> float:
        return self.scaler.scale

    def backward(self, loss: Tensor) -> None:
        """Backward of the scaled loss; the product is taken in float32, which any scale fits."""
        (loss.float() * self.loss_scale).backward()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step from the scaled gradients of the parameters; raises when the scale can fall no further."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        pairs = list(self._pairs())
        for half, master in pairs:
            master.grad = None if half.grad is None else half.grad.float() / self.loss_scale
        gradients = [master.grad for _, master in pairs if master.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
        self.grad_norm = norm.item()
        self.overflow = not bool(norm.isfinite())
        self.scaler.update(overflow=self.overflow)
        if self.overflow:
            return loss
        if self.clip is not None and self.grad_norm > self.clip:
            for gradient in gradients:
                gradient.mul_(self.clip / (self.grad_norm + 1e-6))
        for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update({key: value for key, value in group.items() if key != "params"})
        self.inner.step()
        for half, master in pairs:
            half.copy_(master)
        return loss

    def _pairs(self) -> Iterable[tuple[Tensor, Tensor]]:
        for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            yield from zip(group["params"], inner["params"], strict=True)

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state, the masters and the scaler."""
        masters = [master.detach() for _, master in self._pairs()]
        return {"inner": self.inner.state_dict(), "masters": masters, "scaler": dataclasses.asdict(self.scaler)}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict["inner"])
        for (half, master), saved in zip(self._pairs(), state_dict["masters"], strict=True):
            master.copy_(saved)
            half.copy_(master)
        self.scaler = DynamicLossScaler(**state_dict["scaler"])
        for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            group.update({key: value for key, value in inner.items() if key != "params"})
