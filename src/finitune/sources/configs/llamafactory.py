"""A LLaMA-Factory configuration (YAML or JSON) -> facts: the arguments of transformers, and LLaMA-Factory's own.

What is computed in which dtype was read in llamafactory 0.9.5: model/adapter.py and model/model_utils.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finitune.facts import Adapter, Attention, Facts, Hardware, Precision, Quantization
from finitune.finding import UnreadableInput
from finitune.sources.configs import training_arguments
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.keys import group
from finitune.sources.result import Supervision
from finitune.sources.text import flag, json_object_of, section, whole, word, words

KEYS = {"finetuning_type", "cutoff_len", "neat_packing", "pure_bf16", "quantization_bit"}
STAGES = {"pt", "sft", "rm", "ppo", "dpo", "kto"}
FIRST = {"model", "train_dataset"}
"""What its second generation (v1) calls them."""

IMPLEMENTATIONS = {
    "disabled": "eager", "off": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3",
}  # fmt: skip

ADAPTERS = ("lora", "dora")
INNER_KEYS = {"rank": ("r",), "alpha": ("lora_alpha",), "dropout": ("lora_dropout",)}


def recognises(data: Settings) -> bool:
    """True for a flat mapping with fields that only LLaMA-Factory's files have."""
    return bool(KEYS & data.keys() or _staged(data) or data.keys() >= FIRST) and "base_model" not in data


def recognises_flags(flags: Settings) -> bool:
    """True for flags of LLaMA-Factory; other programs have a few of the same name."""
    return "finetuning_type" in flags or _staged(flags) or len(KEYS & flags.keys()) > 1


def read(data: Settings, file: str) -> Facts:
    """The settings of LLaMA-Factory."""
    facts = training_arguments.read(data, file, framework="llama-factory")
    precision = _precision(data, file, facts.precision)
    adapter = _adapter(data, file, facts.adapter)
    optimizer = facts.optimizer and dataclasses.replace(
        facts.optimizer, lora=None if adapter is None else adapter.kind != "none"
    )
    return dataclasses.replace(
        facts,
        precision=precision,
        adapter=adapter,
        optimizer=optimizer,
        quantization=_quantization(data, file, precision) or facts.quantization,
        attention=_attention(data, file) or facts.attention,
    )


def completed(facts: Facts, data: Settings, file: str, card: Hardware | None) -> Facts | str:
    """Without fp16 and bf16 the model around adapters, and 4-bit products, follow the card and the stored weights.

    bfloat16 where torch says that the card takes it and the model is stored in it, else float16; nothing is scaled, and
    adapters are float32 (extras/misc.py, infer_optim_dtype; model/patcher.py; model/adapter.py).
    """
    products = facts.quantization
    if facts.precision or not (_adapts_plain(facts) or _leaves_products(products, data)):
        return facts
    stored = facts.model.dtype if facts.model else None
    brain = card is not None and (card.bfloat16 or card.emulated)
    if card is None or (brain and stored is None):
        where = "which the card emulates, " if card and not card.bfloat16 else ""
        what = "4-bit products" if products else "around the adapter"
        return (
            f"{file}: without fp16 and bf16 LLaMA-Factory computes {what} in bfloat16, {where}where the "
            "model is stored in it and the card takes it, else in float16 without a loss scale: set one, or give "
            + ("--gpu and --model DIR" if card is None else "--model DIR")
        )
    dtype = "bfloat16" if brain and stored == "bfloat16" else "float16"
    around = Precision(
        compute=dtype, parameters="float32", scaler="none", requested_by="llama-factory",
        source=products.source if products else f"{file}: finetuning_type",
    )  # fmt: skip
    products = products and dataclasses.replace(products, compute_dtype=dtype)
    return dataclasses.replace(facts, quantization=products, precision=around)


def _leaves_products(products: Quantization | None, data: Settings) -> bool:
    return products is not None and products.bits == 4 and not products.compute_dtype and not _compressed(data)


def _adapts_plain(facts: Facts) -> bool:
    """An adapter over weights that nobody quantises or shards: those are held as they are loaded."""
    sharded = facts.parallel is not None and (facts.parallel.zero_stage == 3 or facts.parallel.kind == "fsdp")
    return facts.quantization is None and not sharded and facts.adapter is not None and facts.adapter.kind in ADAPTERS


def precision_keys(dtype: str, data: Settings) -> dict[str, Any]:
    """Trainable weights in float32 and automatic mixed precision; `pure_bf16` is switched off where it is on."""
    pure = {"pure_bf16": False} if data.get("pure_bf16") and dtype != "bfloat16" else {}
    if data.get("pure_bf16") and not pure:
        return {"pure_bf16": True}
    return {"fp16": dtype == "float16", "bf16": dtype == "bfloat16", **pure}


def spelled(key: str, value: Any, data: Settings) -> dict[str, Any] | None:
    """Quantised products are computed in the dtype of the run, and attention has short names."""
    if key == "dtype":
        return {"pure_bf16": False, "bf16": True} if data.get("pure_bf16") and value == "float32" else {}
    if key == "bnb_4bit_compute_dtype":
        return precision_keys(value, data)
    if key == "attn_implementation":
        return {"flash_attn": next((short for short, long in IMPLEMENTATIONS.items() if long == value), value)}
    return {"quantization_bit": None} if key == "load_in_8bit" and value is False else None


def supervision(data: Settings, file: str) -> Supervision:
    """Prompts are no targets unless `train_on_prompt` says so."""
    prompts = flag(data, "train_on_prompt", file)
    pack = [flag(data, key, file) for key in ("packing", "neat_packing")]
    return Supervision(
        max_length=whole(data, "cutoff_len", file),
        completion_only=not prompts,
        assistant_only=not prompts,
        packing=True if True in pack else False if False in pack else None,
    )


def _staged(data: Settings) -> bool:
    return data.get("stage") in STAGES and ("template" in data or "dataset" in data)


def _precision(data: Settings, file: str, asked: Precision | None) -> Precision | None:
    """Trainable weights are kept in float32 unless `pure_bf16` is on."""
    if flag(data, "pure_bf16", file):
        return Precision(
            compute="bfloat16", parameters="bfloat16", scaler="none", requested_by="llama-factory",
            source=f"{file}: pure_bf16",
        )  # fmt: skip
    return asked and (dataclasses.replace(asked, parameters="float32") if asked.compute else asked)


def _adapter(data: Settings, file: str, lora: Adapter | None) -> Adapter | None:
    inner = section(data, "peft_config")
    kind = word(data, "finetuning_type") or word(inner, "name") or ("full" if data.keys() >= FIRST else None)
    if inner and kind == "lora":
        return group(Adapter, inner, f"{file}: peft_config", INNER_KEYS, kind=kind)
    if kind in ("full", "freeze"):
        return Adapter(kind="none", source=file)
    if kind in (None, "lora"):
        found = lora or (Adapter(kind="lora", source=file) if kind else None)
        # the default of lora_alpha is twice the rank
        if found and found.rank is not None and found.alpha is None:
            found = dataclasses.replace(found, alpha=2.0 * found.rank)
        return found
    return Adapter(kind=kind, source=file)


def _compressed(data: Settings) -> bool:
    """Whether the weights are quantised by another package than bitsandbytes."""
    return (word(data, "quantization_method") or "bnb") not in ("bnb", "bitsandbytes")


def _quantization(data: Settings, file: str, precision: Precision | None) -> Quantization | None:
    bits = whole(data, "quantization_bit", file)
    if bits is None:
        return None
    return Quantization(
        bits=bits,
        kind=(word(data, "quantization_type") or "nf4") if bits == 4 and not _compressed(data) else f"int{bits}",
        compute_dtype=precision.compute if precision else None,
        compute_dtype_is_default=True,
        source=f"{file}: quantization_bit",
    )


def named_data(data: Settings) -> Iterator[str]:
    """The file that `dataset_info.json` of the folder of data has for its first set, else the name of the set."""
    names = words(data, "dataset") or [one.strip() for one in (word(data, "dataset") or "").split(",")]
    folder = Path(word(data, "dataset_dir") or "data")
    if not names or not names[0]:
        return
    try:
        known = json_object_of(folder / "dataset_info.json")
    except UnreadableInput:
        known = {}
    file = word(section(known, names[0]), "file_name")
    yield str(folder / file) if file else names[0]


def _attention(data: Settings, file: str) -> Attention | None:
    said = word(data, "flash_attn")
    if said is None or said.lower() in ("true", "false"):
        return None
    return Attention(implementation=IMPLEMENTATIONS.get(said, said), source=f"{file}: flash_attn")


FORMAT = Format(
    name="llamafactory",
    recognises=recognises,
    read=read,
    follows=training_arguments.follows,
    takes_flags=True,
    completed=completed,
    supervision=supervision,
    data=named_data,
    left_out=training_arguments.left_out,
    tables=training_arguments.FORMAT.tables,
    spelled=spelled,
    precision_keys=precision_keys,
    opens=training_arguments.FORMAT.opens,
)
