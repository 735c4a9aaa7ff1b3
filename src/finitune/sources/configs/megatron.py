"""Arguments of Megatron-LM and of programs built on it (flags of a script) -> facts."""

from __future__ import annotations

from finitune.facts import Attention, Facts, Precision
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.tables import facts_of, mixed, unused
from finitune.sources.text import flag, real, whole

TABLES = {
    "optimizer": {
        "name": ("optimizer",), "lr": ("lr",), "eps": ("adam_eps",), "weight_decay": ("weight_decay",),
        "clip": ("clip_grad",), "batch": ("micro_batch_size",), "global_batch": ("global_batch_size",),
        "schedule": ("lr_decay_style",), "max_steps": ("train_iters",), "warmup_ratio": ("lr_warmup_fraction",),
    },
    "batching": {"max_length": ("seq_length",)},
    "training": {"model_name": ("pretrained_checkpoint", "load"), "gradient_checkpointing": ("recompute_activations",)},
}  # fmt: skip
OWN = {
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "num_layers", "num_attention_heads", "train_iters",
    "lr_decay_iters", "lr_decay_style", "lr_warmup_fraction", "max_position_embeddings", "micro_batch_size",
    "global_batch_size", "tokenizer_type", "clip_grad",
}  # fmt: skip
OTHERS = (
    "fp16", "bf16", "loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis",
    "adam_beta1", "adam_beta2", "use_flash_attn",
)  # fmt: skip
DEFAULT_SCALE = 2.0**32
"""`--initial-loss-scale` of Megatron-LM."""


def recognises(data: Settings) -> bool:
    """True for three arguments or more that Megatron's parser has and those of transformers have not."""
    return len(OWN & data.keys()) > 2


def read(data: Settings, file: str) -> Facts:
    """The settings of the trainer; the world is that of the launcher."""
    flash = flag(data, "use_flash_attn", file)
    return facts_of(
        data, file, TABLES, framework="megatron", precision=_precision(data, file),
        attention=Attention(implementation="flash_attention_2", source=f"{file}: use_flash_attn") if flash else None,
    )  # fmt: skip


def _precision(data: Settings, file: str) -> Precision:
    """float32 unless a switch says otherwise; a `--loss-scale` is a fixed one."""
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
    open_ended=True,
    tables=TABLES,
    title=lambda _data: "Megatron",
    unused=lambda data: unused(data, TABLES, OTHERS),
)
