"""An Axolotl configuration (YAML) -> facts. Releases up to 0.19.0; today's keys and those they replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, cast

from finitune.facts import (
    DEFAULT_LOSS_SCALE,
    Adapter,
    Attention,
    Batching,
    Facts,
    Hardware,
    Optimizer,
    Parallel,
    Precision,
    Quantization,
    Training,
)
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.keys import both_halves, group
from finitune.sources.result import Supervision
from finitune.sources.text import flag, real, section, word, words

OPTIMIZER_KEYS = {
    "name": ("optimizer",), "lr": ("learning_rate",), "eps": ("adam_epsilon",), "weight_decay": ("weight_decay",),
    "clip": ("max_grad_norm",), "batch": ("micro_batch_size",), "accumulation": ("gradient_accumulation_steps",),
    "schedule": ("lr_scheduler",), "max_steps": ("max_steps",), "epochs": ("num_epochs",),
    "warmup_ratio": ("warmup_ratio",),
}  # fmt: skip
ADAPTER_KEYS = {
    "rank": ("lora_r",), "alpha": ("lora_alpha",), "dropout": ("lora_dropout",),
    "rank_stabilised": ("peft_use_rslora",), "target_modules": ("lora_target_modules",),
    "trainable": ("lora_modules_to_save",),
}  # fmt: skip
BATCHING_KEYS = {
    "packing": ("sample_packing",), "max_length": ("sequence_len",), "group_by_length": ("group_by_length",),
    "pad_token": ("special_tokens.pad_token",), "eos_token": ("special_tokens.eos_token",),
}  # fmt: skip
TRAINING_KEYS = {
    "method": ("rl",), "model_name": ("base_model",), "chat_template": ("chat_template",),
    "reentrant": ("gradient_checkpointing_kwargs.use_reentrant",), "nan_filter": ("logging_nan_inf_filter",),
    "train_on_prompt": ("train_on_inputs",), "added_tokens": ("tokens",),
}  # fmt: skip
ATTENTION_KEYS = {
    "flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "xformers_attention": "xformers",
    "eager_attention": "eager", "flex_attention": "flex_attention",
}  # fmt: skip
"""Switches of earlier releases, and what they stand for."""


def recognises(data: Settings) -> bool:
    """True for a mapping with a base model that is not one of Ludwig's."""
    ludwig = {"input_features", "output_features", "trainer"} & data.keys() or data.get("model_type") == "llm"
    return "base_model" in data and not ludwig


def follows(data: Settings) -> list[str | Settings]:
    """The DeepSpeed file, or its content in place."""
    named = data.get("deepspeed")
    if isinstance(named, Mapping):
        return [cast(Settings, named)]
    return [named] if isinstance(named, str) and named else []


def read(data: Settings, file: str) -> Facts:
    """The settings of Axolotl. `bf16: auto`, its default, is left open: the card decides."""
    precision = _precision(data, file)
    return Facts(
        precision=precision,
        optimizer=_optimizer(data, file),
        parallel=Parallel(kind="fsdp", source=file) if data.get("fsdp") or data.get("fsdp_config") else None,
        quantization=_quantization(data, file, precision),
        adapter=_adapter(data, file),
        attention=_attention(data, file),
        batching=group(Batching, data, file, BATCHING_KEYS),
        training=group(
            Training, data, file, TRAINING_KEYS,
            framework="axolotl",
            gradient_checkpointing=_switch(data, "gradient_checkpointing", file),
            compiled=_switch(data, "torch_compile", file),
        ),
        disagreements=both_halves(data, file),
    )  # fmt: skip


def settled(facts: Facts, data: Settings, file: str, card: Hardware) -> Facts:
    """`bf16: auto` asks torch for bfloat16, else is float16 unless `fp16` says no; axolotl/utils/config."""
    brain = card.bfloat16 or card.emulated
    if data.get("bf16") != "auto" or facts.precision or (flag(data, "fp16", file) is False and not brain):
        return facts
    return dataclasses.replace(facts, precision=_precision({"bf16": True} if brain else {"fp16": True}, file))


def precision_keys(dtype: str, data: Settings) -> dict[str, Any]:
    """The switches of automatic mixed precision, or those of pure training where they are used."""
    pure = any(data.get(key) for key in ("float16", "bfloat16"))
    half, brain = ("float16", "bfloat16") if pure else ("fp16", "bf16")
    return {half: dtype == "float16", brain: dtype == "bfloat16"}


def spelled(key: str, value: Any, data: Settings) -> dict[str, Any] | None:
    """Pure training has switches of its own, and so has each kernel of attention in earlier releases."""
    if key == "dtype" and value == "float32":
        pure = next((pair for pair in (("float16", "fp16"), ("bfloat16", "bf16")) if data.get(pair[0])), None)
        return {pure[0]: False, pure[1]: True} if pure else {}
    if key != "attn_implementation" or "attn_implementation" in data:
        return None
    on = next((name for name in ATTENTION_KEYS if data.get(name)), None)
    switch = next((name for name, kernel in ATTENTION_KEYS.items() if kernel == value), None)
    return None if on is None or switch is None else {switch: True, **({on: False} if on != switch else {})}


def supervision(data: Settings, file: str) -> Supervision:
    """Prompts are no targets unless `train_on_inputs` says so."""
    prompts = flag(data, "train_on_inputs", file)
    length = real(data, "sequence_len", file)
    return Supervision(
        max_length=int(length) if length else None,
        completion_only=None if prompts is None else not prompts,
        packing=flag(data, "sample_packing", file),
    )


def _precision(data: Settings, file: str) -> Precision | None:
    half, brain = flag(data, "fp16", file), _switch(data, "bf16", file)
    pure_half, pure_brain = flag(data, "float16", file), flag(data, "bfloat16", file)
    if half:
        return Precision(
            compute="float16", scaler="dynamic", initial_scale=DEFAULT_LOSS_SCALE, requested_by="axolotl",
            source=f"{file}: fp16",
        )  # fmt: skip
    if brain:
        full = "bfloat16" if data.get("bf16") == "full" else None
        return Precision(
            compute="bfloat16", scaler="none", full_eval=full, requested_by="axolotl", source=f"{file}: bf16"
        )
    for said, dtype in ((pure_half, "float16"), (pure_brain, "bfloat16")):
        if said:
            return Precision(
                compute=dtype, parameters=dtype, scaler="none", requested_by="axolotl", source=f"{file}: {dtype}"
            )
    if brain is False:  # nothing else is on, and the card is not asked
        return Precision(compute="float32", scaler="none", requested_by="axolotl", source=f"{file}: bf16")
    return None


def _optimizer(data: Settings, file: str) -> Optimizer | None:
    betas = [real(data, key, file) for key in ("adam_beta1", "adam_beta2")]
    warmup = real(data, "warmup_steps", file)
    adapter = data.get("adapter")
    return group(
        Optimizer, data, file, OPTIMIZER_KEYS,
        betas=[b for b in betas if b is not None] if None not in betas else None,
        warmup_steps=int(warmup) if warmup is not None and warmup == int(warmup) else None,
        lora=adapter in ("lora", "qlora"),
    )  # fmt: skip


def _adapter(data: Settings, file: str) -> Adapter:
    asked = word(data, "adapter")
    if not asked:
        return Adapter(kind="none", source=file)
    kind = "dora" if flag(data, "peft_use_dora", file) else {"qlora": "lora"}.get(asked, asked)
    linear = ["all-linear"] if flag(data, "lora_target_linear", file) else None
    return group(Adapter, data, file, ADAPTER_KEYS, kind=kind, **({"target_modules": linear} if linear else {})) or (
        Adapter(kind=kind, source=file)
    )


def _quantization(data: Settings, file: str, precision: Precision | None) -> Quantization | None:
    four = flag(data, "load_in_4bit", file) or data.get("adapter") == "qlora"
    if not (four or flag(data, "load_in_8bit", file)):
        return None
    said = word(section(data, "bnb_config_kwargs"), "bnb_4bit_compute_dtype")
    return Quantization(
        bits=4 if four else 8,
        kind="nf4" if four else "int8",
        # loaders/model.py: the dtype of the run
        compute_dtype=said or (precision.compute if precision and four else None),
        compute_dtype_is_default=said is None,
        source=f"{file}: load_in_4bit" if four else f"{file}: load_in_8bit",
    )


def _attention(data: Settings, file: str) -> Attention | None:
    if said := word(data, "attn_implementation"):
        return Attention(implementation=said, source=f"{file}: attn_implementation")
    key = next((key for key in ATTENTION_KEYS if flag(data, key, file)), None)
    return Attention(implementation=ATTENTION_KEYS[key], source=f"{file}: {key}") if key else None


def named_data(data: Settings) -> Iterator[str]:
    """The files, or the name, of its first set of data."""
    sets: Any = data.get("datasets")
    for one in cast(list[Any], sets)[:1] if isinstance(sets, list) else ():
        if isinstance(one, Mapping):
            said = cast(Settings, one)
            named = [name for key in ("data_files", "path") if (name := word(said, key))]
            yield from words(said, "data_files") or named[:1]


def _switch(data: Settings, key: str, file: str) -> bool | None:
    """A yes or no that may also be the name of a way to do it, such as `gradient_checkpointing: offload`."""
    said = data.get(key)
    known = isinstance(said, str) and said.strip().lower() in ("full", "offload", "offload_disk", "unsloth", "default")
    return True if known else flag(data, key, file)


FORMAT = Format(
    name="axolotl",
    recognises=recognises,
    read=read,
    follows=follows,
    takes_flags=True,
    settled=settled,
    supervision=supervision,
    data=named_data,
    tables={"optimizer": OPTIMIZER_KEYS, "adapter": ADAPTER_KEYS, "batching": BATCHING_KEYS, "training": TRAINING_KEYS},
    spelling={
        "bnb_4bit_compute_dtype": ("bnb_config_kwargs.bnb_4bit_compute_dtype",),
        "autocast_adapter_dtype": ("peft_autocast_adapter_dtype",),
        "ensure_weight_tying": ("peft_ensure_weight_tying",),
    },
    spelled=spelled,
    precision_keys=precision_keys,
    opens=("bnb_config_kwargs", "gradient_checkpointing_kwargs"),
)
