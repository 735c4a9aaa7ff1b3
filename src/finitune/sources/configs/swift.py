"""Flags and files of ms-swift (`swift sft --model ...`) -> facts: the arguments of transformers, and its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from finitune.facts import Facts
from finitune.sources.configs import training_arguments
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.tables import unused
from finitune.sources.text import word, words

TUNERS = ("train_type", "tuner_type", "sft_type")
"""How its releases call the choice between `full` and `lora`."""

OTHERS = (*TUNERS, "model", "model_type", "template", "quant_bits", "quantization_bit", "attn_impl", "dataset")


def recognises(data: Settings) -> bool:
    """True for its choice of a tuner beside a model."""
    return any(key in data for key in TUNERS) and bool({"model", "model_id_or_path", "model_type"} & data.keys())


def read(data: Settings, file: str) -> Facts:
    """The settings of the trainer."""
    return training_arguments.read(_translated(data), file, framework="swift")


def left_out(data: Settings, file: str) -> Iterator[str]:
    """Files of DeepSpeed under other names than those that ms-swift brings along: `zero2`, `zero3_offload`..."""
    return iter(()) if training_arguments.stage_named(data)[0] is not None else training_arguments.left_out(data, file)


def _translated(data: Settings) -> dict[str, Any]:
    """Its own words in those of transformers."""
    found = dict(data)
    tuner = next((said for key in TUNERS if (said := word(data, key))), "")
    for own in ("model", "model_id_or_path"):
        if name := word(data, own):
            found.setdefault("model_name_or_path", name)
    found["use_lora"] = tuner != "full"
    bits = str(data.get("quant_bits") or data.get("quantization_bit") or "")
    if bits in ("4", "8"):
        found[f"load_in_{bits}bit"] = True
    if attention := word(data, "attn_impl"):
        known = {"flash_attn": "flash_attention_2", "flash_attention_2": "flash_attention_2"}
        found["attn_implementation"] = known.get(attention, attention)
    if dtype := word(data, "torch_dtype"):  # without a word on mixed precision it follows the dtype
        found.setdefault("bf16" if dtype == "bfloat16" else "fp16", True)
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
    precision_keys=training_arguments.precision_keys,
    title=lambda _data: "ms-swift",
    unused=lambda data: unused(data, training_arguments.FORMAT.tables, (*OTHERS, *training_arguments.KEYS)),
)
