"""An `accelerate config` file (YAML) -> Precision and Parallel; its DeepSpeed settings are read as DeepSpeed's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finitune.facts import Facts, Parallel, Precision
from finitune.sources.configs.keys import choice, group
from finitune.sources.text import flag, section, whole, word

PRECEDENCE = -1
"""A trainer that is told a precision of its own overrides what the launcher exported."""

LENIENT = True
"""The DeepSpeed file that it names may lie on another machine."""

KEYS = {"compute_environment", "distributed_type", "mixed_precision", "main_training_function", "deepspeed_config"}

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}

SPELLING = {"max_grad_norm": ("deepspeed_config.gradient_clipping",)}

KINDS = {"deepspeed": "deepspeed", "fsdp": "fsdp", "no": "none", "multi_gpu": "ddp", "multi_cpu": "ddp"}

GRADSCALER_INITIAL_SCALE = 65536.0
"""torch.amp.GradScaler's default."""


def recognises(data: Mapping[str, Any]) -> bool:
    """True for a mapping with keys that only accelerate has."""
    return bool(KEYS & data.keys()) and not {"learning_rate", "base_model", "output_dir"} & data.keys()


def read(data: Mapping[str, Any], file: str) -> Facts:
    """What the launcher exports. `mixed_precision: no` only means that the trainer decides."""
    processes, nodes = whole(data, "num_processes", file), whole(data, "num_machines", file)
    offload = flag(section(data, "fsdp_config"), "fsdp_offload_params", file)
    return Facts(
        precision=_precision(data, file),
        parallel=group(
            Parallel, data, file, {},
            kind=choice(data, "distributed_type", file, KINDS),
            world=processes,
            nodes=nodes,
            offload_optimizer="cpu" if offload else None,
            offload_parameters="cpu" if offload else None,
        ),
    )  # fmt: skip


def follows(data: Mapping[str, Any]) -> list[str | Mapping[str, Any]]:
    """The DeepSpeed file, or the few settings that stand here instead, in DeepSpeed's own words."""
    inner = section(data, "deepspeed_config")
    if named := word(inner, "deepspeed_config_file"):
        return [named]
    if not inner:
        return []
    zero = {
        "stage": inner.get("zero_stage"),
        "offload_optimizer": {"device": inner.get("offload_optimizer_device")},
        "offload_param": {"device": inner.get("offload_param_device")},
    }
    same = {key: inner.get(key) for key in ("gradient_accumulation_steps", "gradient_clipping")}
    return [{"zero_optimization": zero, **same}]


def precision_keys(dtype: str, data: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    """One word."""
    return {"mixed_precision": next((word for word, means in DTYPES.items() if means == dtype), "no")}


def _precision(data: Mapping[str, Any], file: str) -> Precision | None:
    # YAML reads a bare no as false
    asked = data.get("mixed_precision")
    dtype = None if isinstance(asked, bool) else choice(data, "mixed_precision", file, {**DTYPES, "no": None})
    cpu = flag(data, "use_cpu", file)
    if dtype not in DTYPES.values():
        return Precision(cpu=cpu) if cpu else None
    half = dtype == "float16"
    return Precision(
        compute=dtype,
        scaler="dynamic" if half else "none",
        initial_scale=GRADSCALER_INITIAL_SCALE if half else None,
        requested_by="accelerate",
        cpu=cpu,
        source=f"{file}: mixed_precision",
    )
