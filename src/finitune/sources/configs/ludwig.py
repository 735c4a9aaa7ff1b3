"""A Ludwig configuration with `model_type: llm` (YAML) -> facts, Ludwig's own defaults where they decide the numbers.

Defaults read in ludwig 0.11.0: schema/llms/quantization.py, schema/optimizers.py, utils/llm_utils.py.
"""

from __future__ import annotations

from typing import Any

from finitune.facts import (
    DEFAULT_LOSS_SCALE,
    Adapter,
    Attention,
    Batching,
    Facts,
    Optimizer,
    Precision,
    Quantization,
    Training,
)
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.keys import group
from finitune.sources.result import Supervision
from finitune.sources.text import flag, section, whole, word

COMPUTE_DTYPE = "float16"
"""Default of quantization.bnb_4bit_compute_dtype; the modules that are not quantised are loaded in it too."""

CLIP = 0.5
"""Default of trainer.gradient_clipping.clipglobalnorm."""

PAD_ID = 0
"""What add_left_padding fills rows with, whatever the padding token of the tokenizer, which the mask leaves out."""

OPTIMIZER_KEYS = {
    "name": ("trainer.optimizer.type",), "lr": ("trainer.learning_rate",), "eps": ("trainer.optimizer.eps",),
    "weight_decay": ("trainer.optimizer.weight_decay",), "batch": ("trainer.batch_size",),
    "accumulation": ("trainer.gradient_accumulation_steps",), "epochs": ("trainer.epochs",),
    "max_steps": ("trainer.train_steps",), "schedule": ("trainer.learning_rate_scheduler.decay",),
    "warmup_ratio": ("trainer.learning_rate_scheduler.warmup_fraction",),
    "clip": ("trainer.gradient_clipping.clipglobalnorm", "trainer.gradient_clipping.clipnorm"),
}  # fmt: skip
ADAPTER_KEYS = {
    "kind": ("adapter.type",), "rank": ("adapter.r",), "alpha": ("adapter.alpha",), "dropout": ("adapter.dropout",),
    "rank_stabilised": ("adapter.use_rslora",), "target_modules": ("adapter.target_modules",),
    "trainable": ("adapter.modules_to_save",),
}  # fmt: skip
TRAINING_KEYS = {"model_name": ("base_model",), "gradient_checkpointing": ("trainer.enable_gradient_checkpointing",)}


def recognises(data: Settings) -> bool:
    """True for a mapping with Ludwig's features, or that says `model_type: llm`."""
    return "input_features" in data or (data.get("model_type") == "llm" and "base_model" in data)


def read(data: Settings, file: str) -> Facts:
    """What Ludwig will do."""
    quantization = _quantization(data, file)
    llm = data.get("model_type") == "llm"
    return Facts(
        precision=_precision(data, file, quantization),
        # other models of Ludwig's are trained from the start, where other learning rates are right
        optimizer=_optimizer(data, file) if llm else None,
        quantization=quantization,
        adapter=group(Adapter, data, file, ADAPTER_KEYS),
        attention=_attention(file) if quantization else None,
        batching=Batching(padding_side="left", pad_id=PAD_ID, max_length=_length(data, file), source=file)
        if llm
        else None,
        training=group(Training, data, file, TRAINING_KEYS, framework="ludwig", method="sft" if llm else None),
    )


def supervision(data: Settings, file: str) -> Supervision:
    """The prompt is never a target."""
    return Supervision(max_length=_length(data, file), completion_only=True)


def precision_keys(dtype: str, data: Settings) -> dict[str, Any] | None:
    """Quantised models compute in the dtype of their products; automatic mixed precision is float16 alone."""
    mixed = section(data, "trainer").get("use_mixed_precision") is not None
    keys = {"quantization.bnb_4bit_compute_dtype": dtype} if section(data, "quantization") else {}
    if dtype == "float16" or (dtype == "bfloat16" and not keys):
        return keys or None
    return {**keys, **({"trainer.use_mixed_precision": False} if mixed else {})}


def _precision(data: Settings, file: str, quantization: Quantization | None) -> Precision | None:
    if flag(section(data, "trainer"), "use_mixed_precision", file):
        return Precision(
            compute="float16",
            scaler="dynamic",
            initial_scale=DEFAULT_LOSS_SCALE,
            requested_by="ludwig",
            source=f"{file}: trainer.use_mixed_precision",
        )
    if quantization is None:
        return None
    compute = quantization.compute_dtype
    return Precision(compute=compute, scaler="none", requested_by="ludwig", source=quantization.source)


def _quantization(data: Settings, file: str) -> Quantization | None:
    block = section(data, "quantization")
    bits = whole(block, "bits", file) if block else None
    if bits is None:
        return None
    said = word(block, "bnb_4bit_compute_dtype")
    return Quantization(
        bits=bits,
        kind=word(block, "bnb_4bit_quant_type") or "nf4" if bits == 4 else "int8",
        compute_dtype=said or COMPUTE_DTYPE,
        compute_dtype_is_default=said is None,
        source=f"{file}: quantization.{'bnb_4bit_compute_dtype' if said else 'bits'}",
    )


def _attention(file: str) -> Attention:
    """Quantised models are loaded with eager attention; all that is not quantised is then cast to float32 (PEFT)."""
    return Attention(implementation="eager", dtype="float32", source=f"{file}: quantization")


def _optimizer(data: Settings, file: str) -> Optimizer | None:
    clipping = section(data, "trainer").get("gradient_clipping", {})
    silent = clipping == {} and "trainer" in data
    known = {"clip": CLIP} if silent else {}
    return group(Optimizer, data, file, OPTIMIZER_KEYS, lora=True if "adapter" in data else None, **known)


def _length(data: Settings, file: str) -> int | None:
    return whole(section(data, "preprocessing"), "global_max_sequence_length", file)


FORMAT = Format(
    name="ludwig",
    recognises=recognises,
    read=read,
    supervision=supervision,
    tables={"optimizer": OPTIMIZER_KEYS, "adapter": ADAPTER_KEYS, "training": TRAINING_KEYS},
    spelling={"bnb_4bit_compute_dtype": ("quantization.bnb_4bit_compute_dtype",)},
    precision_keys=precision_keys,
    opens=("trainer.gradient_clipping", "trainer.optimizer"),
)
