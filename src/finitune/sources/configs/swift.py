"""Flags and files of ms-swift (`swift sft --model ...`) -> facts: the arguments of transformers, and its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from finitune.facts import Facts
from finitune.sources.configs import training_arguments
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.keys import dtype_of
from finitune.sources.configs.launches import COMMAND
from finitune.sources.configs.tables import unused
from finitune.sources.text import word, words

TUNERS = ("train_type", "tuner_type", "sft_type")
"""How its releases call the choice between `full` and `lora`."""

OTHERS = (*TUNERS, COMMAND, "model", "model_type", "template", "quant_bits", "quantization_bit", "attn_impl", "dataset")


def recognises(data: Settings) -> bool:
    """True for `swift sft` and its kin, and for the choice of a tuner beside a model."""
    return COMMAND in data or (
        any(key in data for key in TUNERS) and bool({"model", "model_id_or_path", "model_type"} & data.keys())
    )


def read(data: Settings, file: str) -> Facts:
    """The settings of the trainer. Adapters in float16 are made float32, and 4-bit products follow `torch_dtype`.

    ms-swift 4, pipelines/train/tuner.py and arguments/base_args/quant_args.py.
    """
    facts = training_arguments.read(_translated(data), file, framework="swift")
    loaded = dtype_of(word(data, "torch_dtype"))
    products, precision = facts.quantization, facts.precision
    if loaded and products and products.bits == 4 and products.compute_dtype_is_default:
        compute = "bfloat16" if loaded == "bfloat16" else "float32"
        products = dataclasses.replace(products, compute_dtype=compute)
    if precision and loaded == "float16" and _tuner(data) != "full":
        precision = dataclasses.replace(precision, parameters="float32")
    return dataclasses.replace(facts, quantization=products, precision=precision)


def precision_keys(dtype: str, data: Settings) -> dict[str, Any]:
    """The dtype of loading, which the switches follow: float32 is computed in float16 unless they say otherwise."""
    loaded = (
        "float32" if dtype == "float16" and _tuner(data) == "full" else dtype
    )  # a loss scaler wants float32 weights
    switches = {"fp16": dtype == "float16", "bf16": dtype == "bfloat16"}
    said = {key: on for key, on in switches.items() if key in data or (dtype == "float32" and key == "fp16")}
    return {"torch_dtype": loaded, **said}


def left_out(data: Settings, file: str) -> Iterator[str]:
    """Files of DeepSpeed under other names than those that ms-swift brings along: `zero2`, `zero3_offload`..."""
    return iter(()) if training_arguments.stage_named(data)[0] is not None else training_arguments.left_out(data, file)


def _tuner(data: Settings) -> str:
    """The tuner that is named; LoRA where none is."""
    return next((said for key in TUNERS if (said := word(data, key))), "")


def _translated(data: Settings) -> dict[str, Any]:
    """Its own words in those of transformers."""
    found = dict(data)
    tuner = _tuner(data)
    for own in ("model", "model_id_or_path"):
        if name := word(data, own):
            found.setdefault("model_name_or_path", name)
    if tuner:  # a file that the launch names may say it otherwise than by default
        found["use_lora"] = tuner != "full"
    bits = str(data.get("quant_bits") or data.get("quantization_bit") or "")
    if bits in ("4", "8"):
        found[f"load_in_{bits}bit"] = True
    if attention := word(data, "attn_impl"):
        found["attn_implementation"] = "flash_attention_2" if attention == "flash_attn" else attention
    if dtype := dtype_of(word(data, "torch_dtype")):  # without a word on mixed precision it follows the dtype
        found.setdefault("bf16", dtype == "bfloat16")
        found.setdefault("fp16", dtype != "bfloat16")
    return found


FORMAT = Format(
    name="swift",
    recognises=recognises,
    read=read,
    of_flags=lambda flags: flags if recognises(flags) else None,
    follows=training_arguments.follows,
    open_ended=True,
    supervision=training_arguments.supervision,
    data=lambda data: [name.partition("#")[0] for name in (words(data, "dataset") or [])[:1]],
    left_out=left_out,
    tables={
        **training_arguments.FORMAT.tables,
        "training": {**training_arguments.TRAINING_KEYS, "model_name": ("model", "model_id_or_path")},
    },
    spelling={"attn_implementation": ("attn_impl",), "dtype": ("torch_dtype",)},
    precision_keys=precision_keys,
    followers=("fp16", "bf16"),
    title=lambda _data: "ms-swift",
    unused=lambda data: unused(data, training_arguments.FORMAT.tables, (*OTHERS, *training_arguments.KEYS)),
)
