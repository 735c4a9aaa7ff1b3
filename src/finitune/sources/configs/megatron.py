"""Arguments of Megatron-LM and of programs built on it (flags of a script) -> facts.

ms-swift has a launcher of its own for it, `megatron sft`; its dtype is `torch_dtype`, else that of the stored model
(swift/megatron/arguments/megatron_args.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.facts import Attention, Facts, Precision
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.keys import dtype_of
from finitune.sources.configs.launches import MEGATRON_COMMAND
from finitune.sources.configs.tables import facts_of, mixed, unused
from finitune.sources.text import flag, real, whole, word

TABLES = {
    "optimizer": {
        "name": ("optimizer",), "lr": ("lr",), "eps": ("adam_eps",), "weight_decay": ("weight_decay",),
        "clip": ("clip_grad",), "batch": ("micro_batch_size",), "global_batch": ("global_batch_size",),
        "schedule": ("lr_decay_style",), "max_steps": ("train_iters",), "warmup_ratio": ("lr_warmup_fraction",),
    },
    "adapter": {"rank": ("lora_rank",), "alpha": ("lora_alpha",), "dropout": ("lora_dropout",)},
    "batching": {"max_length": ("seq_length", "max_length"), "packing": ("packing",)},
    "training": {
        "model_name": ("model", "pretrained_checkpoint", "load"), "gradient_checkpointing": ("recompute_activations",),
    },
}  # fmt: skip
OWN = {
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "num_layers", "num_attention_heads", "train_iters",
    "lr_decay_iters", "lr_decay_style", "lr_warmup_fraction", "max_position_embeddings", "micro_batch_size",
    "global_batch_size", "tokenizer_type", "clip_grad",
}  # fmt: skip
OTHERS = (
    "fp16", "bf16", "loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis",
    "adam_beta1", "adam_beta2", "use_flash_attn", "torch_dtype", "tuner_type", "train_type", MEGATRON_COMMAND,
)  # fmt: skip
DEFAULT_SCALE = 2.0**32
"""`--initial-loss-scale` of Megatron-LM."""


def recognises(data: Settings) -> bool:
    """True for three arguments or more that Megatron's parser has and those of transformers have not."""
    return _of_swift(data) or len(OWN & data.keys()) > 2


def _of_swift(data: Settings) -> bool:
    """Whether ms-swift reads it: by its launcher, or by a tuner or dtype of its own beside Megatron's batches."""
    own = {"tuner_type", "train_type", "torch_dtype"} & data.keys()
    return MEGATRON_COMMAND in data or bool(own and {"micro_batch_size", "global_batch_size"} & data.keys())


def read(data: Settings, file: str) -> Facts:
    """The settings of the trainer; the world is that of the launcher."""
    flash = flag(data, "use_flash_attn", file)
    tuner = word(data, "tuner_type") or word(data, "train_type")
    return facts_of(
        data, file, TABLES, framework="megatron", lora=tuner != "full" if tuner else None,
        precision=_precision(data, file),
        attention=Attention(implementation="flash_attention_2", source=f"{file}: use_flash_attn") if flash else None,
    )  # fmt: skip


def left_out(data: Settings, file: str) -> Iterator[str]:
    """The dtype, where ms-swift leaves it to the model."""
    if _precision(data, file) is None:
        yield f"{file}: without torch_dtype ms-swift trains in the dtype that the model is stored in"


def _precision(data: Settings, file: str) -> Precision | None:
    """float32 unless a switch says otherwise; a `--loss-scale` is a fixed one."""
    if _of_swift(data) and not any(flag(data, key, file) for key in ("fp16", "bf16")):
        loaded = dtype_of(word(data, "torch_dtype"))
        half = "bfloat16" if loaded == "bfloat16" else "float16"  # float32 weights are computed in float16 there
        return mixed(half, f"{file}: torch_dtype", "megatron") if loaded else None
    for key, dtype in (("fp16", "float16"), ("bf16", "bfloat16")):
        if flag(data, key, file):
            fixed = real(data, "loss_scale", file)
            start = real(data, "initial_loss_scale", file)
            return mixed(
                dtype, f"{file}: {key}", "megatron", scaler="static" if fixed else None,
                initial_scale=fixed or start or DEFAULT_SCALE, min_scale=real(data, "min_loss_scale", file),
                scale_window=whole(data, "loss_scale_window", file), hysteresis=whole(data, "hysteresis", file),
            )  # fmt: skip
    return Precision(compute="float32", parameters="float32", scaler="none", requested_by="megatron", source=file)


FORMAT = Format(
    name="megatron",
    recognises=recognises,
    read=read,
    of_flags=lambda flags: flags if recognises(flags) else None,
    left_out=left_out,
    open_ended=True,
    tables=TABLES,
    title=lambda data: "ms-swift through Megatron" if _of_swift(data) else "Megatron",
    unused=lambda data: unused(data, TABLES, OTHERS),
)
