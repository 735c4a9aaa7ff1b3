"""DeepSpeed's optimizers around the user's own: where each ZeRO stage keeps its gradients, and how a step is skipped.

ZeRO 1 and 2 can also be given gradients that were computed anew. The model computes with weights that every rank holds
whole, as views of one flat tensor per group; each rank steps its own part of a float32 copy of it, and then all of them
gather the new weights. Written against what the releases 0.16 to 0.19 have in common. Nothing of DeepSpeed is imported
here.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finitune.monitor.probes.optimizers import parameters_of

LAST_STEP = ("overflow", "micro_step_id", "_global_grad_norm")
REDUCED = ("averaged_gradients", "all_grad_tensors")
PARALLEL = (("sequence", "size"), ("model", "world_size"))


def is_own_optimizer(optimizer: Any) -> bool:
    """True for the optimizers that DeepSpeed wraps around the user's: ZeRO, FP16, BF16."""
    return _is_deepspeeds(optimizer) and hasattr(optimizer, "optimizer") and hasattr(optimizer, "overflow")


def is_partitioned(optimizer: Any) -> bool:
    """True for that of ZeRO 1 and 2."""
    return is_own_optimizer(optimizer) and hasattr(optimizer, "single_partition_of_fp32_groups")


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
        self.skip()

    def restore_gradients(self) -> None:
        return None  # those of a discarded step are gone

    def before_step(self) -> None:
        return None  # its master weights are float32

    @property
    def why_not_by_hand(self) -> str | None:
        """Why it cannot be given gradients that were computed anew; None where it can."""
        own, kind = self.optimizer, type(self.optimizer).__name__
        if not is_partitioned(own):
            return f"{kind} keeps gradients or weights in another way than ZeRO 1 and 2"
        if getattr(own, "cpu_offload", False) or getattr(own, "zenflow", False):
            return "the optimizer is offloaded to the host"
        if getattr(own, "torch_autocast_gradscaler", None) is not None or getattr(own, "custom_loss_scaler", False):
            return "the loss scale is not kept by DeepSpeed alone"
        if any(kind.__name__ == "PipelineEngine" for kind in type(self.engine).__mro__):
            return "the layers are spread over a pipeline"
        parallel = max(getattr(own, f"{what}_parallel_{size}", 1) for what, size in PARALLEL)
        if parallel > 1 or getattr(own, "has_moe_layers", False) or not getattr(own, "gradient_average", True):
            return "gradients are not simply averaged over the ranks"
        if not str(type(own.optimizer).step.__module__).startswith("torch.optim."):
            return f"{type(own.optimizer).__name__} computes its update from more than the gradients"
        return None

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


def trained_by(optimizer: Any) -> list[nn.Parameter]:
    """The parameters of the model that any optimizer trains, in the same order on every rank."""
    own = is_partitioned(optimizer)
    return [p for group in optimizer.bit16_groups for p in group] if own else parameters_of(optimizer)


def gathered(optimizer: Any) -> list[Tensor]:
    """The weights that the model computes with, where they are not what the optimizer steps."""
    return list(optimizer.bit16_groups_flat) if is_partitioned(optimizer) else []


def parts(update: DeepSpeedUpdate) -> list[tuple[Tensor, Tensor]]:
    """Of ZeRO 1 and 2 what this rank's next step will change, in float32, each with its gradient."""
    if not is_partitioned(update.optimizer):
        return []
    pairs = [(getattr(p, "_hp_mapping", None), gradient) for p, gradient in update.gradients()]
    found = [(mapping.hp_fragment, gradient) for mapping, gradient in pairs if mapping is not None]
    return [(part, gradient) for part, gradient in found if part.numel() == gradient.numel()]


def forget_views(optimizer: Any) -> None:
    """Moments were taken away, and new ones will be made: DeepSpeed then looks for each parameter's part of them."""
    if is_partitioned(optimizer):
        optimizer._hp_optimizer_states_linked = False


@torch.no_grad()
def put_in_parts(optimizer: Any, pairs: Sequence[tuple[nn.Parameter, Tensor]]) -> None:
    """Whole gradients, averaged over the ranks, where the next step of ZeRO 1 and 2 looks for those of its part; zero
    where there is none, as after a backward.
    """
    of = {id(p): gradient for p, gradient in pairs}
    for number, master in enumerate(optimizer.single_partition_of_fp32_groups):
        parts, end, empty = list[Tensor](), 0, torch.zeros_like(master)
        for p in optimizer.params_in_partition[number]:
            within, there = p._hp_mapping.lp_fragment_address, p._hp_mapping.hp_fragment_address
            gradient = of.get(id(p))
            part = empty.narrow(0, there.start, there.numel)
            if gradient is not None:
                part = gradient.reshape(-1).narrow(0, within.start, within.numel).to(empty.dtype)
            parts += [*_padding(empty, end, there.start), part]
            end = there.start + there.numel
        optimizer.averaged_gradients[number] = [*parts, *_padding(empty, end, empty.numel())]


def _padding(empty: Tensor, begin: int, end: int) -> list[Tensor]:
    """Between two parameters, or after the last; marked, for DeepSpeed pairs the others with its parameters."""
    part: Any = empty.narrow(0, begin, end - begin)
    part._zero_padding = True
    return [part] if end > begin else []


class Unscaled:
    """A loss scaler of DeepSpeed, as its optimizers call it, that scales nothing."""

    cur_scale = 1.0
    dynamic = False

    def update_scale(self, overflow: bool) -> None:  # noqa: FBT001
        """An overflow is the caller's business."""


@contextmanager
def steps_by_hand(optimizer: Any) -> Iterator[None]:
    """Steps that are taken within leave the gradients of the next step of the run, and what DeepSpeed says of its last,
    as they were. They are given gradients without a loss scale, and change none.
    """
    if not is_partitioned(optimizer):
        yield
        return
    said = {name: getattr(optimizer, name) for name in LAST_STEP if hasattr(optimizer, name)}
    kept = {name: dict(getattr(optimizer, name)) for name in REDUCED if hasattr(optimizer, name)}
    summed = [(p, getattr(p, "grad_accum", None)) for group in optimizer.bit16_groups for p in group]
    scaler, optimizer.loss_scaler = optimizer.loss_scaler, Unscaled()
    try:
        yield
    finally:
        optimizer.loss_scaler = scaler
        for name, value in said.items():
            setattr(optimizer, name, value)
        for name, gradients in kept.items():
            own = getattr(optimizer, name)  # others hold this dictionary
            own.clear()
            own.update(gradients)
        for p, gradient in summed:
            p.grad_accum = gradient
