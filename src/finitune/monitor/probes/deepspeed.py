"""DeepSpeed's optimizers around the user's own: where each ZeRO stage keeps its gradients, and how a step is skipped.

Written against what the releases 0.16 to 0.19 have in common. Nothing of DeepSpeed is imported here.
"""

from __future__ import annotations

import math
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def is_own_optimizer(optimizer: Any) -> bool:
    """True for the optimizers that DeepSpeed wraps around the user's: ZeRO, FP16, BF16."""
    return _is_deepspeeds(optimizer) and hasattr(optimizer, "optimizer") and hasattr(optimizer, "overflow")


def is_engine(model: nn.Module) -> bool:
    return _is_deepspeeds(model) and isinstance(getattr(model, "module", None), nn.Module)


def _is_deepspeeds(thing: Any) -> bool:
    return any(kind.__module__.startswith("deepspeed.runtime") for kind in type(thing).__mro__)


class DeepSpeedUpdate:
    """One of DeepSpeed's own optimizers; see `finitune.monitor.probes.update.Update`."""

    scaler_decides = False
    gradients_are_scaled = False
    takes_flag = False

    def __init__(self, model: nn.Module | None, optimizer: Any, engine: Any = None) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._model = None if model is None else weakref.ref(model)
        self._engine = None if engine is None else weakref.ref(engine)
        self._withheld = False

    @property
    def optimizer(self) -> Any:
        return self._optimizer()

    @property
    def engine(self) -> Any:
        return self._engine() if self._engine else None

    @property
    def skips_overflows(self) -> bool:
        """Every release does in float16. In bfloat16 some do; there the gate does not leave it to them."""
        return any(p.dtype == torch.float16 for p in self.parameters())

    @property
    def skipped(self) -> bool:
        return bool(self.optimizer.overflow)

    @property
    def loss_scale(self) -> float | None:
        # ZeRO 0: releases up to 0.19.8 at least divide by the scale and never multiply the loss (DeepSpeed#8393).
        if any(kind.__module__.startswith("deepspeed.runtime.fp16") for kind in type(self.optimizer).__mro__):
            return None
        scale = getattr(self.optimizer, "loss_scale", None)
        return float(getattr(self.optimizer, "cur_scale", 1.0) if scale is None else scale)

    def parameters(self) -> list[nn.Parameter]:
        model = self._model() if self._model else None
        if model is None:
            return [p for group in self.optimizer.param_groups for p in group["params"]]
        return [p for p in model.parameters() if p.requires_grad]

    def gradients(self) -> list[tuple[nn.Parameter, Tensor]]:
        own = self.optimizer
        if getattr(own, "cpu_offload", False):  # ZeRO 1 and 2: one flat partition per group
            parts = zip(own.bit16_groups, own.single_partition_of_fp32_groups, strict=True)
            return [(group[0], part.grad) for group, part in parts if group and part.grad is not None]
        if hasattr(own, "fp32_groups_gradients"):
            return _paired(own.bf16_groups, own.fp32_groups_gradients)
        flat = getattr(own, "fp32_partitioned_groups_flat", None)
        if getattr(own, "offload_optimizer", False) and flat:  # ZeRO 3: one flat partition per sub-group
            return [(group[0], part.grad) for group, part in zip(own.fp16_groups, flat, strict=False)
                    if group and part.grad is not None]  # fmt: skip
        if isinstance(averaged := getattr(own, "averaged_gradients", None), dict):
            groups = getattr(own, "params_in_partition", None) or own.fp16_groups
            numbers = [number for number, gradients in averaged.items() if gradients]
            return _paired([groups[n] for n in numbers], [averaged[n] for n in numbers])
        return [(p, p.grad) for p in self.parameters() if p.grad is not None]

    def begin(self) -> None:
        self.optimizer.overflow = False  # a bfloat16 optimizer that never looks would go on skipping after our skip

    def discard_on_device(self, flag: Tensor) -> None:
        raise NotImplementedError("DeepSpeed's kernels take no flag")

    def withhold(self) -> None:
        self._withheld = True

    def restore_gradients(self) -> None:
        self._withheld = False

    def before_step(self) -> None:
        return None  # its master weights are float32

    def save(self, directory: Path) -> None:
        """A checkpoint of DeepSpeed's own: the moments lie in partitions that only it can put together."""
        if self.engine is not None:
            self.engine.save_checkpoint(str(directory / "deepspeed"))

    def skip(self) -> None:
        """What each of its optimizers does on an overflow, but for the loss scale, which is not at fault."""
        own = self.optimizer
        own.overflow = True
        own._global_grad_norm = math.nan  # else the norm of the step before is reported once more
        if hasattr(own, "_overflow_clean_up"):  # ZeRO 3
            own.micro_step_id = 0
            own._partition_all_parameters()
            own._overflow_clean_up(self.loss_scale)
            return
        if hasattr(own, "clear_hp_grads"):
            own.clear_hp_grads()
            own.clear_lp_grads()
            return
        if hasattr(own, "micro_step_id"):
            own.micro_step_id = -1
        own.zero_grad(set_to_none=True)
        if hasattr(own, "_release_preflattened_grad_buffers"):
            own._release_preflattened_grad_buffers()
        if getattr(own, "cpu_offload", False):
            own.reset_cpu_buffers()
        for gradients in (getattr(own, "averaged_gradients", {}), getattr(own, "all_grad_tensors", {})):
            gradients.update(dict.fromkeys(gradients))


def _paired(groups: Any, gradients: Any) -> list[tuple[nn.Parameter, Tensor]]:
    """Parameters with their gradients, group by group; padding at the end of a partition has no parameter."""
    pairs = [pair for own, theirs in zip(groups, gradients, strict=False) for pair in zip(own, theirs, strict=False)]
    return [(parameter, gradient) for parameter, gradient in pairs if gradient is not None]
