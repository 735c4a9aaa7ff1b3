"""Settings of HF `TrainingArguments` and TRL (JSON or YAML) -> Precision, Optimizer, and how rows become labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from finitune.facts import Facts, Optimizer, Precision
from finitune.sources.reading import Supervision
from finitune.sources.text import flag, real, section, whole, word

KEYS = {
    "fp16", "bf16", "learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs",
    "max_steps", "max_grad_norm", "warmup_steps", "warmup_ratio", "weight_decay", "adam_epsilon", "adam_beta1",
    "adam_beta2", "optim", "output_dir", "lr_scheduler_type", "logging_steps", "gradient_checkpointing",
    "deepspeed", "max_length", "max_seq_length", "dtype", "torch_dtype", "model_init_kwargs",
    "completion_only_loss", "assistant_only_loss", "packing", "use_peft", "lora_r", "model_name_or_path",
}  # fmt: skip
"""Fields of TrainingArguments, SFTConfig and ModelConfig that say something here."""

OTHERS_KEYS = {"input_features", "base_model", "micro_batch_size", "compute_environment", "distributed_type"}
"""Keys that only the files of Ludwig, Axolotl and accelerate have."""

GRADSCALER_INITIAL_SCALE = 65536.0
"""torch.amp.GradScaler's default."""

HALVES = {"float16": "float16", "fp16": "float16", "half": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16"}


def recognises(data: Mapping[str, Any]) -> bool:
    """True for a flat mapping with any of the fields and none that belongs to another format."""
    return (
        bool(KEYS & data.keys())
        and not OTHERS_KEYS & data.keys()
        and not any(isinstance(data.get(key), Mapping) for key in ("fp16", "bf16"))
    )


def follows(data: Mapping[str, Any]) -> list[str | Mapping[str, Any]]:
    """Other configurations that this one names: the DeepSpeed file, or its content in place."""
    named = data.get("deepspeed")
    if isinstance(named, Mapping):
        return [cast(Mapping[str, Any], named)]
    return [named] if isinstance(named, str) and named else []


def read(data: Mapping[str, Any], file: str) -> Facts:
    """What the trainer is told. A field that is left out is not reported at its default, except the loss scaler's."""
    return Facts(precision=_precision(data, file), optimizer=_optimizer(data, file))


def supervision(data: Mapping[str, Any], file: str) -> Supervision:
    """How rows are cut and which of their tokens are targets."""
    length = next((n for k in ("max_length", "max_seq_length") if (n := whole(data, k, file)) is not None), None)
    return Supervision(
        max_length=length if length and length > 0 else None,
        completion_only=flag(data, "completion_only_loss", file),
        assistant_only=flag(data, "assistant_only_loss", file),
        packing=flag(data, "packing", file),
    )


def _precision(data: Mapping[str, Any], file: str) -> Precision | None:
    half, brain = flag(data, "fp16", file), flag(data, "bf16", file)
    inner = section(data, "model_init_kwargs")
    loaded = next((w for d in (data, inner) for k in ("dtype", "torch_dtype") if (w := word(d, k))), None)
    parameters = (
        HALVES.get(loaded.removeprefix("torch."), "float32" if "float32" in loaded else None) if loaded else None
    )
    if half:
        return Precision(
            compute="float16",
            parameters=parameters,
            scaler="dynamic",
            initial_scale=GRADSCALER_INITIAL_SCALE,
            source=f"{file}: fp16",
        )
    if brain:
        return Precision(compute="bfloat16", parameters=parameters, scaler="none", source=f"{file}: bf16")
    if parameters:
        return Precision(compute=parameters, parameters=parameters, scaler="none", source=f"{file}: dtype")
    if half is False and brain is False:
        return Precision(compute="float32", scaler="none", source=file)
    return None


def _optimizer(data: Mapping[str, Any], file: str) -> Optimizer | None:
    betas = [real(data, key, file) for key in ("adam_beta1", "adam_beta2")]
    warmup = real(data, "warmup_steps", file)
    # transformers 5 reads a warmup_steps below 1 as a fraction of the run
    fraction = warmup if warmup is not None and 0 < warmup < 1 else real(data, "warmup_ratio", file)
    found = Optimizer(
        name=word(data, "optim"),
        lr=real(data, "learning_rate", file),
        eps=real(data, "adam_epsilon", file),
        betas=[b for b in betas if b is not None] if None not in betas else None,
        weight_decay=real(data, "weight_decay", file),
        warmup_steps=int(warmup) if warmup is not None and warmup == int(warmup) else None,
        warmup_ratio=fraction,
        clip=real(data, "max_grad_norm", file),
        batch=whole(data, "per_device_train_batch_size", file),
        lora=_lora(data, file),
        source=file,
    )
    return None if found == Optimizer(source=file) else found


def _lora(data: Mapping[str, Any], file: str) -> bool | None:
    """True when an adapter is asked for; None when the file is silent, because the script may still add one."""
    said = flag(data, "use_peft", file)
    if said is not None:
        return said
    return True if any(key.startswith("lora_") or key == "peft_config" for key in data) else None
