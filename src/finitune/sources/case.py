"""A case file (a mapping that somebody wrote about a run, free in form) -> Facts.

Keys, all optional: `framework`, `model`, `hardware`, `title`, `log`, `config`. What is written in words a machine
cannot be sure of is left out; nothing here is ever refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from finitune.facts import Facts, Model, Optimizer, Parallel, Precision, TokenUse, Vocabulary
from finitune.finding import UnreadableInput, number
from finitune.sources import hardware, training_arguments
from finitune.sources.environment import RELEVANT
from finitune.sources.hardware import KNOWN

ALIASES = {
    "lr": "learning_rate", "batch_size": "per_device_train_batch_size", "grad_accum": "gradient_accumulation_steps",
    "optimizer": "optim", "eps": "adam_epsilon", "adam_eps": "adam_epsilon", "attn": "attn_implementation",
    "lora_rank": "lora_r", "network_dim": "lora_r", "network_alpha": "lora_alpha", "seq_len": "max_length",
    "packed": "packing", "sample_packing": "packing", "lora_enable": "use_peft", "grad_clip": "max_grad_norm",
    "params": "dtype", "param_dtype": "dtype", "weights": "dtype", "torch_dtype": "dtype", "use_fp16": "fp16",
    "clip_grad_norm": "max_grad_norm",
}  # fmt: skip
"""How people write a setting -> its field of TrainingArguments or TRL. `a.b` counts as `b`."""

FAMILIES = {
    r"qwen-?2": "qwen2", r"qwen-?3": "qwen3", r"qwen": "qwen2", r"chatglm": "chatglm", r"glm-?4": "glm",
    r"baichuan": "baichuan", r"gemma": "gemma", r"falcon": "falcon", r"phi-?\d": "phi", r"bloom": "bloom",
    r"minicpm": "minicpm", r"t5": "t5", r"mi[sx]tral": "mistral", r"llama|llava|vicuna": "llama",
}  # fmt: skip
"""Pattern in a model's name -> `model_type`; the first that fits."""
IN_BFLOAT16 = {
    "qwen2", "qwen3", "glm", "baichuan", "gemma", "falcon", "minicpm", "mistral", "bloom", "t5", "llama",
}  # fmt: skip
"""Families that were pre-trained in bfloat16, whatever dtype a copy of them is stored in."""

HALVES = {"fp16": "fp16", "float16": "fp16", "16": "fp16", "half": "fp16", "bf16": "bf16", "bfloat16": "bf16"}
APEX = {"O1": "fp16", "O2": "fp16", "O3": "dtype"}
"""NVIDIA apex: O3 is pure float16."""

_VERSION = re.compile(r"\d+(?:\.\d+)+")
_STAGE = re.compile(r"(?:zero|ds_?z|stage|\bz)[-_ ]?([0-3])\b", re.IGNORECASE)
_WORD = re.compile(r"[\w.+-]+")
_OPTIMIZER = re.compile(r"\w*(adam|adafactor|sgd|lion)\w*", re.IGNORECASE)


def read(case: Mapping[str, Any]) -> Facts:
    """Everything in the case that a chapter can use."""
    config = case.get("config")
    given: Mapping[str, Any] = cast("Mapping[str, Any]", config) if isinstance(config, Mapping) else {}
    told = " ".join(str(case.get(key) or "") for key in ("framework", "title"))
    settings = dict(_settings(given))
    facts = _arguments(settings)
    cards = [name for name in KNOWN if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(case.get("hardware") or ""))]
    return dataclasses.replace(
        facts,
        optimizer=facts.optimizer or Optimizer(),
        precision=facts.precision or Precision(),
        model=_model(str(case.get("model") or ""), given),
        tokens=_tokens(given),
        vocabulary=_vocabulary(given),
        hardware=hardware.read(cards[0]) if cards else None,
        versions=dict(_versions(given, told)) or None,
        parallel=_parallel(given, told),
    )


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields of TrainingArguments with plain values: the first word where a remark follows."""
    for raw, value in config.items():
        key = ALIASES.get(raw.rpartition(".")[2], raw.rpartition(".")[2])
        if isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get("enabled")
        first = _first(value)
        if isinstance(value, str) and ".half()" in value:
            yield "dtype", "float16"
        elif key in ("precision", "mixed_precision", "autocast") and str(first) in HALVES:
            yield HALVES[str(first)], True
        elif key == "apex_opt_level":
            field = APEX.get(str(first))
            if field:
                yield field, True if field == "fp16" else "float16"
        elif key in ("full_fp16", "full_bf16") and first is True:
            yield "dtype", "float16" if key == "full_fp16" else "bfloat16"
        elif key in ("finetuning", "finetuning_type"):
            yield "use_peft", str(first).lower() != "full"
        elif key == "optim":
            named = _OPTIMIZER.search(str(value))
            yield key, named[0] if named else str(value)
        elif first is not None:
            yield key, first
    rates = [rate for key, value in config.items() if key.endswith("_lr") and (rate := number(value)) is not None]
    if rates:  # of several parameter groups the highest is what counts
        yield "learning_rate", max(rates)


def _first(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = _WORD.search(value)
    word = found[0] if found else None
    lowered = str(word).lower()
    return {"true": True, "false": False, "on": True, "off": False, "none": None}.get(lowered, word)


def _arguments(settings: dict[str, Any]) -> Facts:
    """The settings as TrainingArguments, without those that have no sound value."""
    sound: dict[str, Any] = {}
    for key, value in settings.items():
        try:
            training_arguments.read({**sound, key: value}, "the case")
        except (UnreadableInput, ValueError, TypeError):
            continue
        sound[key] = value
    return training_arguments.read(sound, "the case")


def _model(name: str, config: Mapping[str, Any]) -> Model:
    family = next((kind for pattern, kind in FAMILIES.items() if re.search(pattern, name.lower())), None)
    tied = next((v for key in ("tie_word_embeddings", "weight_tying") if isinstance(v := config.get(key), bool)), None)
    dtype = "bfloat16" if family in IN_BFLOAT16 else None
    return Model(family=family, vocabulary=_whole(config, "embedding_rows"), tied=tied, dtype=dtype)


def _tokens(config: Mapping[str, Any]) -> TokenUse | None:
    largest = _whole(config, "max_input_id")
    if largest is None:
        return None
    one = np.ones(1, np.int64)
    return TokenUse(ids=one * largest, counts=one, first=one, sequences=1, source="the case")


def _vocabulary(config: Mapping[str, Any]) -> Vocabulary | None:
    size = _whole(config, "tokenizer_vocab")
    return None if size is None else Vocabulary(size=size, source="the case")


def _whole(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else None


def _versions(config: Mapping[str, Any], told: str) -> Iterator[tuple[str, str]]:
    for package in RELEVANT:
        pattern = re.compile(rf"\b{re.escape(package)}\W{{1,3}}(\d+(?:\.\d+)+)", re.IGNORECASE)
        if in_words := pattern.search(told):
            yield package, in_words[1]
    for key, value in config.items():
        package = key.removesuffix("_bad").replace("_", "-").lower()
        if package in RELEVANT and (found := _VERSION.search(str(value))):
            yield package, found[0]


def _parallel(config: Mapping[str, Any], told: str) -> Parallel | None:
    stage = _whole(config, "zero_stage")
    said = _STAGE.search(f"{config.get('deepspeed', '')} {told}")
    stage = int(said[1]) if stage is None and said else stage
    deepspeed = stage is not None or "deepspeed" in f"{told} {' '.join(config)}".lower()
    if not deepspeed:
        return None
    overlap = _first(config.get("overlap_comm"))
    bucket = _whole(config, "reduce_bucket_size")
    return Parallel(
        kind="deepspeed", zero_stage=stage, overlap_comm=overlap if isinstance(overlap, bool) else None,
        reduce_bucket_size=bucket, source="the case",
    )  # fmt: skip
