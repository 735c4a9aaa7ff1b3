"""Settings of HF `TrainingArguments` and TRL (JSON or YAML) -> facts, and how rows become labels."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, cast

from finitune.facts import (
    DEFAULT_LOSS_SCALE,
    Adapter,
    Attention,
    Batching,
    Facts,
    Optimizer,
    Parallel,
    Precision,
    Quantization,
    Training,
)
from finitune.finding import UnreadableInput
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.keys import both_halves, dtype_of, group, named
from finitune.sources.result import Supervision
from finitune.sources.text import flag, real, section, short, whole, word, words

KEYS = {
    "fp16", "bf16", "learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs",
    "max_steps", "max_grad_norm", "warmup_steps", "warmup_ratio", "weight_decay", "adam_epsilon", "adam_beta1",
    "adam_beta2", "optim", "output_dir", "lr_scheduler_type", "logging_steps", "gradient_checkpointing",
    "deepspeed", "max_length", "max_seq_length", "dtype", "torch_dtype", "model_init_kwargs",
    "completion_only_loss", "assistant_only_loss", "packing", "use_peft", "lora_r", "lora_rank", "lora_alpha",
    "model_name_or_path", "load_in_4bit", "load_in_8bit", "attn_implementation", "use_lora", "q_lora", "qlora",
    "fp16_full_eval", "fsdp", "adafactor", "micro_batch_size", "zero_stage",
}  # fmt: skip
"""Fields of TrainingArguments, SFTConfig and ModelConfig that say something here."""

OTHERS_KEYS = {
    "input_features", "output_features", "base_model", "compute_environment", "distributed_type", "finetuning_type",
    "cutoff_len", "peft_type",
}  # fmt: skip
"""Keys that only the files of Ludwig, Axolotl, accelerate and LLaMA-Factory have, and adapters that were saved."""

OPTIMIZER_KEYS = {
    "name": ("optim", "optimizer"), "lr": ("learning_rate", "lr"), "eps": ("adam_epsilon", "adam_eps"),
    "weight_decay": ("weight_decay",), "clip": ("max_grad_norm",),
    "batch": ("per_device_train_batch_size", "per_gpu_train_batch_size", "micro_batch_size"),
    "accumulation": ("gradient_accumulation_steps",), "schedule": ("lr_scheduler_type",), "max_steps": ("max_steps",),
    "epochs": ("num_train_epochs",),
}  # fmt: skip
ADAPTER_KEYS = {
    "rank": ("lora_r", "lora_rank", "lora_dim", "r"), "alpha": ("lora_alpha",), "dropout": ("lora_dropout",),
    "rank_stabilised": ("use_rslora",), "target_modules": ("lora_target_modules", "lora_target"),
    "trainable": ("lora_modules_to_save", "modules_to_save", "additional_target"),
}  # fmt: skip
BATCHING_KEYS = {
    "padding_side": ("padding_side",), "packing": ("packing", "neat_packing"),
    "max_length": ("max_length", "max_seq_length", "model_max_length", "cutoff_len", "max_seq_len"),
    "group_by_length": ("group_by_length",), "pad_token": ("pad_token",), "eos_token": ("eos_token",),
}  # fmt: skip
TRAINING_KEYS = {
    "method": ("stage",), "model_name": ("model_name_or_path", "model_name"),
    "chat_template": ("template", "template_name", "chat_template_path", "chat_template"),
    "gradient_checkpointing": ("gradient_checkpointing", "activation_checkpointing"),
    "reentrant": ("gradient_checkpointing_kwargs.use_reentrant", "use_reentrant_gc"), "compiled": ("torch_compile",),
    "nan_filter": ("logging_nan_inf_filter",), "response_template": ("response_template",),
    "train_on_prompt": ("train_on_prompt", "train_on_inputs"),
    "label_smoothing": ("label_smoothing_factor", "label_smoothing"), "generations": ("num_generations",),
    "teacher": ("teacher_model", "teacher_model_name_or_path"),
}  # fmt: skip

DATA_KEYS = (
    "train_file", "train_files", "train_file_dir", "train_data", "train_data_path", "train_data_file", "train_path",
    "training_file", "train_dataset_path", "data_path", "data_file", "data_files", "dataset_path", "dataset_file",
    "dataset_name", "dataset",
)  # fmt: skip
"""Under which names programs take their training data; the surest first."""

STAGE = re.compile(r"(?:ds[-_]?)?(?:zero|stage)[-_]?([0-3])([-_](?:cpu[-_]?)?offload)?", re.IGNORECASE)
"""Names that programs give to their own files of DeepSpeed."""

ADAPTER_SWITCHES = ("use_peft", "use_lora", "q_lora", "qlora")
FULL_EVAL = {"fp16_full_eval": "float16", "bf16_full_eval": "bfloat16"}


def recognises(data: Settings) -> bool:
    """True for a flat mapping with any of the fields and none that belongs to another format."""
    return (
        bool(KEYS & data.keys())
        and not OTHERS_KEYS & data.keys()
        and not any(isinstance(data.get(key), Mapping) for key in ("fp16", "bf16"))
    )


def follows(data: Settings) -> list[str | Settings]:
    """Other configurations that this one names: the DeepSpeed file, or its content in place."""
    named = data.get("deepspeed")
    if isinstance(named, Mapping):
        return [cast(Settings, named)]
    return [named] if isinstance(named, str) and PurePath(named).suffix else []


def left_out(data: Settings, file: str) -> Iterator[str]:
    """Settings of DeepSpeed that a program has by a name of its own, such as `zero2`."""
    named = data.get("deepspeed")
    if isinstance(named, str) and named and not PurePath(named).suffix:
        stage, _ = stage_named(data)
        meant = "" if stage is None else f", taken for ZeRO-{stage}"
        yield f"{file}: deepspeed: {short(named)} is a name that only the program knows{meant}"


def stage_named(data: Settings) -> tuple[int | None, bool]:
    """The stage of ZeRO in a name such as `zero2` or `zero3_offload`, and whether it offloads."""
    named = data.get("deepspeed")
    found = STAGE.fullmatch(named) if isinstance(named, str) else None
    return (int(found[1]), bool(found[2])) if found else (None, False)


BFLOAT16_BY_DEFAULT = "bf16 by default"
"""Set where the settings are TRL's: from 0.19 on it trains in bfloat16 unless fp16 or bf16 says otherwise (#3515)."""


def read(data: Settings, file: str, *, framework: str = "transformers") -> Facts:
    """Settings of the trainer. A field that is left out is not reported at its default, except the loss scaler's."""
    precision = _precision(data, file, framework)
    return Facts(
        precision=precision,
        optimizer=_optimizer(data, file),
        parallel=_parallel(data, file),
        quantization=_quantization(data, file, precision.compute if precision else None),
        adapter=_adapter(data, file),
        attention=_attention(data, file),
        batching=group(Batching, data, file, BATCHING_KEYS),
        training=group(Training, data, file, TRAINING_KEYS, framework=framework),
        disagreements=both_halves(data, file),
    )


def precision_keys(dtype: str, data: Settings) -> dict[str, Any]:
    """The two switches, and the dtype of loading where the other half precision is named there."""
    switches: dict[str, Any] = {"fp16": dtype == "float16", "bf16": dtype == "bfloat16"}
    for key in ("dtype", "torch_dtype"):
        loaded = dtype_of(word(data, key))
        if loaded in ("float16", "bfloat16") and loaded != dtype:
            switches[key] = "float32" if dtype == "float16" else dtype  # a loss scaler wants float32 weights
    return switches


def supervision(data: Settings, file: str) -> Supervision:
    """How rows are cut and which of their tokens are targets."""
    length = next((n for k in ("max_length", "max_seq_length") if (n := whole(data, k, file)) is not None), None)
    return Supervision(
        max_length=length if length and length > 0 else None,
        completion_only=flag(data, "completion_only_loss", file),
        assistant_only=flag(data, "assistant_only_loss", file),
        packing=flag(data, "packing", file),
        response_template=word(data, "response_template"),
    )


def named_data(data: Settings) -> list[str]:
    """The data that it names."""
    return named(data, DATA_KEYS)


def _precision(data: Settings, file: str, framework: str) -> Precision | None:
    half, brain = flag(data, "fp16", file), flag(data, "bf16", file)
    inner = section(data, "model_init_kwargs")
    loaded = next((w for d in (data, inner) for k in ("dtype", "torch_dtype") if (w := word(d, k))), None)
    parameters = dtype_of(loaded)
    said: dict[str, Any] = {}
    if half:
        scale = DEFAULT_LOSS_SCALE
        said = {"compute": "float16", "scaler": "dynamic", "initial_scale": scale, "source": f"{file}: fp16"}
    elif brain or (brain is None and data.get(BFLOAT16_BY_DEFAULT)):
        said = {"compute": "bfloat16", "scaler": "none", "source": f"{file}: bf16"}
    elif parameters:
        said = {"compute": parameters, "scaler": "none", "source": f"{file}: dtype"}
    elif half is False and brain is False:
        said = {"compute": "float32", "scaler": "none", "source": file}
    full = next((dtype for key, dtype in FULL_EVAL.items() if flag(data, key, file)), None)
    cpu = next((answer for key in ("use_cpu", "no_cuda") if (answer := flag(data, key, file)) is not None), None)
    kept = words(data, "float32_modules") or words(section(data, "finitune"), "float32_modules")
    if not said and full is None and not cpu and not kept:
        return None
    asked = framework if said else None
    return Precision(
        parameters=parameters, full_eval=full, cpu=cpu, requested_by=asked, float32_modules=kept, **said
    )  # fmt: skip


def _optimizer(data: Settings, file: str) -> Optimizer | None:
    hints = typing.get_type_hints(Optimizer)
    for name, keys in OPTIMIZER_KEYS.items():
        numeric = {int, float} & set(typing.get_args(hints[name]))
        for key in keys if numeric else ():
            if data.get(key) == "auto":
                raise UnreadableInput(f"{file}: {key}: 'auto' (expected a number: auto stands in DeepSpeed's own file)")
    betas = [real(data, key, file) for key in ("adam_beta1", "adam_beta2")]
    warmup = real(data, "warmup_steps", file)
    # transformers 5 reads a warmup_steps below 1 as a fraction of the run
    fraction = warmup if warmup is not None and 0 < warmup < 1 else real(data, "warmup_ratio", file)
    return group(
        Optimizer, data, file, OPTIMIZER_KEYS,
        betas=[b for b in betas if b is not None] if None not in betas else None,
        warmup_steps=int(warmup) if warmup is not None and warmup == int(warmup) else None,
        warmup_ratio=fraction,
        lora=_lora(data, file),
    )  # fmt: skip


def _lora(data: Settings, file: str) -> bool | None:
    """True when an adapter is asked for; None when the file is silent, because the script may still add one."""
    said = next((answer for key in ADAPTER_SWITCHES if (answer := flag(data, key, file)) is not None), None)
    if said is not None:
        return said
    return True if any(key.startswith("lora_") or key == "peft_config" for key in data) else None


def _adapter(data: Settings, file: str) -> Adapter | None:
    wanted = _lora(data, file)
    kind = None if wanted is None else "none" if not wanted else "dora" if flag(data, "use_dora", file) else "lora"
    return None if kind is None else group(Adapter, data, file, ADAPTER_KEYS if wanted else {}, kind=kind)


def _quantization(data: Settings, file: str, compute: str | None) -> Quantization | None:
    four = any(flag(data, key, file) for key in ("load_in_4bit", "q_lora", "qlora"))
    eight = flag(data, "load_in_8bit", file)
    if not (four or eight):
        return None
    said = word(data, "bnb_4bit_compute_dtype")
    return Quantization(
        bits=4 if four else 8,
        kind=(word(data, "bnb_4bit_quant_type") or "nf4") if four else "int8",
        # TRL computes in the dtype of the model, which is the one it is asked to train in
        compute_dtype=(dtype_of(said) or said) if said else compute if four else None,
        compute_dtype_is_default=said is None,
        source=f"{file}: load_in_4bit" if four else f"{file}: load_in_8bit",
    )


def _attention(data: Settings, file: str) -> Attention | None:
    for inner in (data, section(data, "model_init_kwargs")):
        if said := word(inner, "attn_implementation"):
            return Attention(implementation=said, source=f"{file}: attn_implementation")
    flash = next((k for k in ("use_flash_attention_2", "use_flash_attn") if flag(data, k, file)), None)
    return Attention(implementation="flash_attention_2", source=f"{file}: {flash}") if flash else None


def _parallel(data: Settings, file: str) -> Parallel | None:
    sharded = data.get("fsdp")
    if isinstance(sharded, str | list) and sharded:
        offload = "cpu" if "offload" in str(cast(Any, sharded)) else None
        return Parallel(kind="fsdp", offload_optimizer=offload, offload_parameters=offload, source=file)
    stage = whole(data, "zero_stage", file)  # DeepSpeed-Chat and its descendants
    offload = "cpu" if stage is not None and flag(data, "offload", file) else None
    if stage is None and (named := stage_named(data))[0] is not None:
        stage, offload = named[0], "cpu" if named[1] else "none"
        parameters = offload if stage == 3 else None
        return Parallel(
            kind="deepspeed", zero_stage=stage, offload_optimizer=offload, offload_parameters=parameters,
            source=f"{file}: deepspeed",
        )  # fmt: skip
    if stage is None and not data.get("deepspeed"):
        return None
    return Parallel(kind="deepspeed", zero_stage=stage, offload_optimizer=offload, source=file)


FORMAT = Format(
    name="training_arguments",
    recognises=recognises,
    read=read,
    follows=follows,
    takes_flags=True,
    supervision=supervision,
    data=named_data,
    left_out=left_out,
    open_ended=True,  # programs add arguments of their own beside these
    tables={"optimizer": OPTIMIZER_KEYS, "adapter": ADAPTER_KEYS, "batching": BATCHING_KEYS, "training": TRAINING_KEYS},
    spelling={"dtype": ("torch_dtype", "model_init_kwargs.dtype", "model_init_kwargs.torch_dtype"),
              "float32_modules": ("finitune.float32_modules",)},
    precision_keys=precision_keys,
    adds={  # fields of TrainingArguments itself; a program may not know those of TRL and would refuse them
        "fp16", "bf16", "learning_rate", "max_grad_norm", "adam_epsilon", "warmup_steps", "group_by_length",
        "logging_nan_inf_filter", "gradient_checkpointing_kwargs", "fp16_full_eval",
        "finitune",  # the block of `finitune train`, where there is one
    },
    opens=("gradient_checkpointing_kwargs",),
)  # fmt: skip
