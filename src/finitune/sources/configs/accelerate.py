"""An `accelerate config` file (YAML) -> Precision and Parallel; its DeepSpeed settings are read as DeepSpeed's own."""

from __future__ import annotations

from typing import Any

from finitune.facts import DEFAULT_LOSS_SCALE, Facts, Parallel, Precision
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.keys import choice, group
from finitune.sources.text import flag, section, whole, word

KEYS = {"compute_environment", "distributed_type", "mixed_precision", "main_training_function", "deepspeed_config"}

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}

KINDS = {"deepspeed": "deepspeed", "fsdp": "fsdp", "no": "none", "multi_gpu": "ddp", "multi_cpu": "ddp"}


def recognises(data: Settings) -> bool:
    """True for a mapping with keys that only accelerate has."""
    return bool(KEYS & data.keys()) and not {"learning_rate", "base_model", "output_dir"} & data.keys()


def read(data: Settings, file: str) -> Facts:
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


def follows(data: Settings) -> list[str | Settings]:
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


def precision_keys(dtype: str, data: Settings) -> dict[str, Any]:  # noqa: ARG001
    """One word."""
    return {"mixed_precision": next((word for word, means in DTYPES.items() if means == dtype), "no")}


def _precision(data: Settings, file: str) -> Precision | None:
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
        initial_scale=DEFAULT_LOSS_SCALE if half else None,
        requested_by="accelerate",
        cpu=cpu,
        source=f"{file}: mixed_precision",
    )


FORMAT = Format(
    name="accelerate",
    recognises=recognises,
    read=read,
    follows=follows,
    precedence=-1,  # a trainer with a precision of its own overrides what the launcher exported
    spelling={"max_grad_norm": ("deepspeed_config.gradient_clipping",)},
    precision_keys=precision_keys,
)
