"""Flags of OpenRLHF -> facts; it trains through DeepSpeed.

Three generations: `--bf16`, without which DeepSpeed gets no dtype; `--param_dtype` from 0.9.2 on, bf16 unless it
says fp16; dotted flags such as `--ds.param_dtype` from 0.10 on. Read in its openrlhf/cli and models/actor.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from finitune.facts import Attention, Facts, Parallel, Precision, Quantization
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.keys import first
from finitune.sources.configs.tables import facts_of, mixed, nested, unused
from finitune.sources.text import flag, section, word

TABLES = {
    "optimizer": {
        "lr": ("learning_rate", "actor_learning_rate", "adam.lr", "actor.adam.lr"),
        "eps": ("adam.eps", "actor.adam.eps"), "weight_decay": ("l2", "adam.weight_decay", "actor.adam.weight_decay"),
        "clip": ("max_norm", "actor.max_norm"), "batch": ("micro_train_batch_size", "train.micro_batch_size"),
        "global_batch": ("train_batch_size", "train.batch_size"), "epochs": ("max_epochs", "train.max_epochs"),
        "schedule": ("lr_scheduler", "actor.lr_scheduler"),
        "warmup_ratio": ("lr_warmup_ratio", "actor.lr_warmup_ratio"),
    },
    "adapter": {
        "rank": ("lora_rank", "ds.lora.rank"), "alpha": ("lora_alpha", "ds.lora.alpha"),
        "dropout": ("lora_dropout", "ds.lora.dropout"), "target_modules": ("target_modules", "ds.lora.target_modules"),
    },
    "batching": {"packing": ("packing_samples", "ds.packing_samples"), "max_length": ("max_len", "data.max_len")},
    "training": {
        "model_name": ("pretrain", "model.model_name_or_path", "actor.model_name_or_path"),
        "gradient_checkpointing": (
            "gradient_checkpointing", "model.gradient_checkpointing_enable", "actor.gradient_checkpointing_enable",
        ),
        "reentrant": (
            "gradient_checkpointing_use_reentrant", "model.gradient_checkpointing_reentrant",
            "actor.gradient_checkpointing_reentrant",
        ),
        "generations": ("n_samples_per_prompt", "rollout.n_samples_per_prompt"),
    },
}  # fmt: skip
GROUPS = ("group_norm", "dr_grpo", "rloo", "reinforce_baseline")
"""Ways to estimate advantages that compare the answers of one prompt with each other."""
ALONE = {name: keys for name, keys in TABLES["training"].items() if name != "generations"}
OWN = {"micro_train_batch_size", "micro_rollout_batch_size", "actor_learning_rate", "reward_pretrain", "max_epochs"}
OTHERS = (
    "bf16", "zero_stage", "adam_offload", "flash_attn", "attn_implementation", "param_dtype", "load_in_4bit",
    "advantage_estimator", "algo.advantage.estimator",
)  # fmt: skip

DTYPES = ("ds.param_dtype", "param_dtype")
PACKED = ("ds.packing_samples", "packing_samples")
NEEDS_PACKING = ("ds.ring_attn_size", "ring_attn_size", "train.dynamic_batch_enable", "use_dynamic_batch")
SHORT = {"bfloat16": "bf16", "float16": "fp16"}
"""How it spells a dtype."""


def recognises(data: Settings) -> bool:
    """True for flags that only OpenRLHF has together."""
    return ("pretrain" in data and bool(OWN & data.keys())) or _dotted(data)


def of_flags(flags: Settings) -> Settings | None:
    """The flags, dotted ones as sections; None where they are not OpenRLHF's."""
    found = nested(flags) if any("." in key for key in flags) else flags
    return found if recognises(found) else None


def read(data: Settings, file: str) -> Facts:
    """The settings of the trainer."""
    rank = first(data, file, TABLES["adapter"]["rank"], int)
    stage = first(data, file, ("zero_stage", "ds.zero_stage"), int)
    offload = "cpu" if first(data, file, ("adam_offload", "ds.adam_offload"), bool) else None
    estimator = first(data, file, ("advantage_estimator", "algo.advantage.estimator"), str)
    tables = TABLES if estimator in GROUPS else {**TABLES, "training": ALONE}
    return facts_of(
        data, file, tables, framework="openrlhf", lora=rank > 0 if rank is not None else None,
        precision=_precision(data, file), quantization=_quantization(data, file), attention=_attention(data, file),
        parallel=Parallel(kind="deepspeed", zero_stage=stage, offload_optimizer=offload, source=file),
    )  # fmt: skip


def left_out(data: Settings, file: str) -> Iterator[str]:
    """The dtype, where the flags leave it to the model."""
    if _precision(data, file) is None:
        yield f"{file}: without bf16 OpenRLHF trains in the dtype that the model is stored in"


def spelled(key: str, value: Any, data: Settings) -> dict[str, Any] | None:
    """Attention has three names; packed samples take FlashAttention whatever it says."""
    if key != "attn_implementation":
        return None
    packed = [name for name in PACKED if first(data, "", (name,), bool)] if "flash" not in value else []
    if packed and any(first(data, "", (name,), str) not in (None, "1") for name in NEEDS_PACKING):
        return None
    if _dotted(data):
        said: dict[str, Any] = {"ds.attn_implementation": value}
    else:
        said = {"flash_attn": "flash" in value} if "flash_attn" in data else {key: value}
    return {**said, **dict.fromkeys(packed, False)}


def precision_keys(dtype: str, data: Settings) -> dict[str, Any] | None:
    """One word for bfloat16 or float16; with `--bf16` alone there is no float16, and none has float32."""
    name = next((name for name in DTYPES if first(data, "", (name,), str)), DTYPES[0] if _dotted(data) else None)
    if name is None:
        return {"bf16": True} if dtype == "bfloat16" else None
    return {name: SHORT[dtype]} if dtype in SHORT else None


def _dotted(data: Settings) -> bool:
    named = "model_name_or_path" in section(data, "model") or "model_name_or_path" in section(data, "actor")
    return named and bool({"micro_batch_size", "batch_size", "max_epochs"} & section(data, "train").keys())


def _precision(data: Settings, file: str) -> Precision | None:
    for name in DTYPES:
        if said := first(data, file, (name,), str):
            return mixed("float16" if said == "fp16" else "bfloat16", f"{file}: {name}", "deepspeed")
    if _dotted(data) or flag(data, "bf16", file):
        return mixed("bfloat16", f"{file}: {DTYPES[0] if _dotted(data) else 'bf16'}", "deepspeed")
    return None


def _quantization(data: Settings, file: str) -> Quantization | None:
    """Always computed in bfloat16."""
    name = next((key for key in ("load_in_4bit", "ds.load_in_4bit") if first(data, file, (key,), bool)), None)
    return Quantization(bits=4, kind="nf4", compute_dtype="bfloat16", source=f"{file}: {name}") if name else None


def _attention(data: Settings, file: str) -> Attention | None:
    for name in ("ds.attn_implementation", "attn_implementation"):
        if said := first(data, file, (name,), str):
            return Attention(implementation=said, source=f"{file}: {name}")
    if _dotted(data):
        return Attention(implementation="flash_attention_2", source=f"{file}: ds.attn_implementation")
    if flag(data, "flash_attn", file):
        return Attention(implementation="flash_attention_2", source=f"{file}: flash_attn")
    return None


def named_data(data: Settings) -> list[str]:
    """The set that it trains on."""
    inner = section(data, "data")
    said = (word(data, "dataset"), word(data, "prompt_data"), word(inner, "dataset"), word(inner, "prompt_dataset"))
    return [one for one in said if one][:1]


FORMAT = Format(
    name="openrlhf",
    recognises=recognises,
    read=read,
    of_flags=of_flags,
    left_out=left_out,
    open_ended=True,
    declares=True,
    data=named_data,
    tables=TABLES,
    spelled=spelled,
    precision_keys=precision_keys,
    title=lambda _data: "OpenRLHF",
    unused=lambda data: unused(data, TABLES, OTHERS),
)
