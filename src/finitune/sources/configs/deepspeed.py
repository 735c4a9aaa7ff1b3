"""A DeepSpeed configuration (JSON) -> Precision, Optimizer and Parallel. "auto" is left to the trainer's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from finitune.facts import DEFAULT_SCALE_POWER, Facts, Optimizer, Parallel, Precision
from finitune.finding import number
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.keys import both_halves, dtype_of, group
from finitune.sources.text import flag, real, section, whole, word

OWN_KEYS = {
    "zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_clipping",
    "zero_allow_untested_optimizer", "steps_per_print", "wall_clock_breakdown",
}  # fmt: skip

PARALLEL_KEYS = {
    "overlap_comm": ("zero_optimization.overlap_comm",),
    "reduce_bucket_size": ("zero_optimization.reduce_bucket_size",),
    "multi_rank_bucket_allreduce": ("zero_optimization.use_multi_rank_bucket_allreduce",),
    "check_grad_overflow": ("bf16.check_grad_overflow", "bfloat16.check_grad_overflow"),
}


def recognises(data: Settings) -> bool:
    """True for a mapping with DeepSpeed's own keys, or with fp16 or bf16 as a section."""
    return bool(OWN_KEYS & data.keys()) or any(isinstance(data.get(key), Mapping) for key in ("fp16", "bf16"))


def read(data: Settings, file: str) -> Facts:
    """The settings of the engine."""
    return Facts(
        precision=_precision(data, file),
        optimizer=_optimizer(data, file),
        parallel=_parallel(data, file),
        disagreements=both_halves(data, file, "fp16.enabled", "bf16.enabled"),
    )


def precision_keys(dtype: str, data: Settings) -> dict[str, Any]:
    """Both switches; the older name of the section is kept where it is used."""
    brain = "bfloat16" if "bfloat16" in data else "bf16"
    return {"fp16.enabled": dtype == "float16", f"{brain}.enabled": dtype == "bfloat16"}


def _precision(data: Settings, file: str) -> Precision | None:
    def enabled(name: str) -> bool | None:
        return flag(section(data, name), "enabled", f"{file}: {name}")

    bf16 = "bf16" if section(data, "bf16") else "bfloat16"
    half, brain = enabled("fp16"), enabled(bf16)
    scale = _scaling(section(data, "fp16"), f"{file}: fp16")
    if half:
        return Precision(compute="float16", requested_by="deepspeed", source=f"{file}: fp16.enabled", **scale)
    if brain:
        return Precision(compute="bfloat16", scaler="none", requested_by="deepspeed", source=f"{file}: {bf16}.enabled")
    if enabled("amp"):  # NVIDIA apex, float16 with a scaler of its own
        return Precision(compute="float16", scaler="dynamic", requested_by="deepspeed", source=f"{file}: amp.enabled")
    dtype = dtype_of(word(section(data, "torch_autocast"), "dtype"))
    if enabled("torch_autocast") and dtype:
        scaler = "dynamic" if dtype == "float16" else "none"
        return Precision(compute=dtype, scaler=scaler, requested_by="deepspeed", source=f"{file}: torch_autocast.dtype")
    auto = [name for name in ("fp16", bf16) if section(data, name).get("enabled") == "auto"]
    if "fp16" in auto:
        return Precision(**scale)
    if auto or (half is None and brain is None):
        return None
    return Precision(compute="float32", scaler="none", requested_by="deepspeed", source=file)


def _scaling(fp16: Settings, file: str) -> dict[str, Any]:
    """The loss scaler with DeepSpeed's defaults: 2**16, hysteresis 2, never below 1. A static scale is one above 0."""
    static = real(fp16, "loss_scale", file) or 0.0
    power = real(fp16, "initial_scale_power", file)
    hysteresis = whole(fp16, "hysteresis", file)
    minimum = real(fp16, "min_loss_scale", file)
    return {
        "scaler": "static" if static > 0 else "dynamic",
        "initial_scale": static if static > 0 else 2.0 ** min(DEFAULT_SCALE_POWER if power is None else power, 1000.0),
        "hysteresis": 2 if hysteresis is None else hysteresis,
        "min_scale": 1.0 if minimum is None else minimum,
        "scale_window": whole(fp16, "loss_scale_window", file),
    }


def _parallel(data: Settings, file: str) -> Parallel | None:
    zero = section(data, "zero_optimization")
    switch = data.get("zero_optimization")
    stage = whole(zero, "stage", f"{file}: zero_optimization") if "zero_optimization" in data else 0  # its default
    return group(
        Parallel, data, file, PARALLEL_KEYS,
        kind="deepspeed",
        zero_stage=int(switch) if isinstance(switch, bool) else stage,  # a switch before 0.3
        offload_optimizer=_offload(zero, "offload_optimizer", ("cpu_offload",), file),
        offload_parameters=_offload(zero, "offload_param", ("cpu_offload_params", "cpu_offload_param"), file),
        communication_dtype=_dtype(data, "communication_data_type"),
        grad_accum_dtype=_dtype(section(data, "data_types"), "grad_accum_dtype"),
    )  # fmt: skip


def _offload(zero: Settings, key: str, old_keys: Sequence[str], file: str) -> str | None:
    """The device, from the section of today or the yes or no of releases before 0.3.16."""
    if isinstance(zero.get(key), Mapping):
        return word(section(zero, key), "device") or "none"
    said = next((answer for old in old_keys if (answer := flag(zero, old, file)) is not None), None)
    return None if said is None else "cpu" if said else "none"


def _dtype(data: Settings, key: str) -> str | None:
    said = word(data, key)
    return dtype_of(said) or said


def _optimizer(data: Settings, file: str) -> Optimizer | None:
    block = section(data, "optimizer")
    given = section(block, "params")
    schedule = section(section(data, "scheduler"), "params")
    rates = [real(given, "lr", file), real(schedule, "warmup_max_lr", file), real(schedule, "cycle_max_lr", file)]
    found = Optimizer(
        name=word(block, "type"),
        lr=max((rate for rate in rates if rate is not None), default=None),
        eps=real(given, "eps", file),
        betas=_pair(given.get("betas")),
        weight_decay=real(given, "weight_decay", file),
        warmup_steps=whole(schedule, "warmup_num_steps", file),
        schedule_steps=whole(schedule, "total_num_steps", file),
        clip=real(data, "gradient_clipping", file),
        batch=whole(data, "train_micro_batch_size_per_gpu", file),
        accumulation=whole(data, "gradient_accumulation_steps", file),
        global_batch=whole(data, "train_batch_size", file),
        source=file,
    )
    return None if found == Optimizer(source=file) else found


def _pair(value: Any) -> list[float] | None:
    numbers = [number(v) for v in cast(list[Any], value)] if isinstance(value, list) else []
    known = [n for n in numbers if n is not None]
    return known if len(numbers) == len(known) == 2 else None


FORMAT = Format(
    name="deepspeed",
    recognises=recognises,
    read=read,
    precedence=1,  # the engine holds the numbers, so its word is what happens where it and the trainer disagree
    spelling={  # settings of the trainer that the engine takes too
        "max_grad_norm": ("gradient_clipping",),
        "learning_rate": ("optimizer.params.lr",),
        "adam_epsilon": ("optimizer.params.eps",),
        "warmup_steps": ("scheduler.params.warmup_num_steps",),
    },
    precision_keys=precision_keys,
    opens=("fp16", "bf16", "zero_optimization", "data_types"),
)
