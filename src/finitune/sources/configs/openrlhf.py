"""Flags of OpenRLHF -> facts; it trains through DeepSpeed, in bfloat16 where `--bf16` is given, else in float16."""

from __future__ import annotations

from finitune.facts import Attention, Facts, Parallel
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.tables import facts_of, mixed, unused
from finitune.sources.text import flag, whole, word

TABLES = {
    "optimizer": {
        "lr": ("learning_rate", "actor_learning_rate"), "weight_decay": ("l2",), "clip": ("max_norm",),
        "batch": ("micro_train_batch_size",), "global_batch": ("train_batch_size",), "epochs": ("max_epochs",),
        "schedule": ("lr_scheduler",), "warmup_ratio": ("lr_warmup_ratio",),
    },
    "adapter": {
        "rank": ("lora_rank",), "alpha": ("lora_alpha",), "dropout": ("lora_dropout",),
        "target_modules": ("target_modules",),
    },
    "batching": {"packing": ("packing_samples",), "max_length": ("max_len",)},
    "training": {
        "model_name": ("pretrain",), "gradient_checkpointing": ("gradient_checkpointing",),
        "reentrant": ("gradient_checkpointing_use_reentrant",), "generations": ("n_samples_per_prompt",),
    },
}  # fmt: skip
GROUPS = ("group_norm", "dr_grpo", "rloo")
"""Ways to estimate advantages that compare the answers of one prompt with each other."""
ALONE = {name: keys for name, keys in TABLES["training"].items() if name != "generations"}
OWN = {"micro_train_batch_size", "micro_rollout_batch_size", "actor_learning_rate", "reward_pretrain", "max_epochs"}
OTHERS = ("bf16", "fp16", "zero_stage", "adam_offload", "flash_attn", "attn_implementation", "param_dtype")


def recognises(data: Settings) -> bool:
    """True for flags that only OpenRLHF has together."""
    return "pretrain" in data and bool(OWN & data.keys())


def read(data: Settings, file: str) -> Facts:
    """The settings of the trainer."""
    rank = whole(data, "lora_rank", file)
    brain = flag(data, "bf16", file) or word(data, "param_dtype") == "bf16"
    stage = whole(data, "zero_stage", file)
    offload = "cpu" if flag(data, "adam_offload", file) else None
    named = word(data, "attn_implementation") or ("flash_attention_2" if flag(data, "flash_attn", file) else None)
    tables = TABLES if word(data, "advantage_estimator") in GROUPS else {**TABLES, "training": ALONE}
    return facts_of(
        data, file, tables, framework="openrlhf", lora=rank > 0 if rank is not None else None,
        precision=mixed("bfloat16" if brain else "float16", f"{file}: bf16", "deepspeed"),
        parallel=Parallel(kind="deepspeed", zero_stage=stage, offload_optimizer=offload, source=file),
        attention=Attention(implementation=named, source=f"{file}: flash_attn") if named else None,
    )  # fmt: skip


FORMAT = Format(
    name="openrlhf",
    recognises=recognises,
    read=read,
    of_flags=lambda flags: flags if recognises(flags) else None,
    open_ended=True,
    data=lambda data: [said for said in (word(data, "dataset") or word(data, "prompt_data"),) if said],
    tables=TABLES,
    title=lambda _data: "OpenRLHF",
    unused=lambda data: unused(data, TABLES, OTHERS),
)
