"""A case file (a mapping that somebody wrote about a run, free in form) -> Facts.

Keys, all optional: `framework`, `model`, `hardware`, `title`, `log`, `config`. What is written in words a machine
cannot be sure of is left out; nothing here is ever refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from finitune.facts import Disagreement, Facts, Hardware, Model, Optimizer, Parallel, Precision, Training
from finitune.finding import UnreadableInput, number
from finitune.sources import hardware
from finitune.sources.configs import training_arguments
from finitune.sources.environment import RELEVANT
from finitune.sources.families import family_of
from finitune.sources.hardware import KNOWN

ALIASES = {
    "lr": "learning_rate", "eps": "adam_epsilon", "adam_eps": "adam_epsilon", "beta2": "adam_beta2",
    "optimizer": "optim", "wd": "weight_decay", "warmup": "warmup_steps", "lr_warmup_steps": "warmup_steps",
    "batch_size": "per_device_train_batch_size", "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "micro_batch_size": "per_device_train_batch_size", "grad_accum": "gradient_accumulation_steps",
    "gradient_accumulation": "gradient_accumulation_steps", "accumulate_grad_batches": "gradient_accumulation_steps",
    "grad_accumulation_steps": "gradient_accumulation_steps", "num_epochs": "num_train_epochs",
    "grad_clip": "max_grad_norm", "clip_grad_norm": "max_grad_norm", "gradient_clipping": "max_grad_norm",
    "gradient_clip_val": "max_grad_norm", "max_norm": "max_grad_norm", "clip_grad": "max_grad_norm",
    "attn": "attn_implementation", "attention": "attn_implementation", "attn_impl": "attn_implementation",
    "lora_rank": "lora_r", "network_dim": "lora_r", "network_alpha": "lora_alpha", "lora": "use_peft",
    "lora_enable": "use_peft", "peft": "use_peft", "rslora": "use_rslora",
    "seq_len": "max_length", "seq_length": "max_length", "sequence_len": "max_length", "cutoff_len": "max_length",
    "max_seq_len": "max_length", "max_seq_length": "max_length", "packed": "packing", "sample_packing": "packing",
    "params": "dtype", "param_dtype": "dtype", "weights": "dtype", "torch_dtype": "dtype", "model_dtype": "dtype",
    "compute_dtype": "bnb_4bit_compute_dtype", "use_fp16": "fp16", "use_bf16": "bf16", "amp": "fp16", "use_amp": "fp16",
    "load_8bit": "load_in_8bit", "int8": "load_in_8bit", "load_4bit": "load_in_4bit",
    "use_reentrant": "use_reentrant_gc", "label_smoothing": "label_smoothing_factor",
    "scheduler": "lr_scheduler_type", "lr_scheduler": "lr_scheduler_type",
}  # fmt: skip
"""How people write a setting -> its field of TrainingArguments or TRL. `a.b` counts as `b`, `a.enabled` as `a`."""

PACKAGES = {
    "pytorch": "torch", "ds": "deepspeed", "bnb": "bitsandbytes", "flash-attention": "flash-attn",
    "flashattention": "flash-attn", "flash-attention-2": "flash-attn", "hf-transformers": "transformers",
    "te": "transformer-engine",
}  # fmt: skip
"""Other names of packages."""

IN_BFLOAT16 = {
    "qwen2", "qwen3", "glm", "baichuan", "gemma", "falcon", "minicpm", "mistral", "bloom", "t5", "llama", "deepseek",
    "internlm",
}  # fmt: skip
"""Families that were pre-trained in bfloat16, whatever dtype a copy of them is stored in."""

HALVES = {
    "fp16": "fp16", "float16": "fp16", "16": "fp16", "half": "fp16", "bf16": "bf16", "bfloat16": "bf16",
    "16-mixed": "fp16", "fp16-mixed": "fp16", "bf16-mixed": "bf16",
}  # fmt: skip
WHOLE = {"16-true": "float16", "bf16-true": "bfloat16"}
"""Lightning's names for weights that are held in 16 bits."""
UNDER_AUTOCAST = re.compile(r"autocast|amp\b|mixed", re.IGNORECASE)
_QUANTIZED = {
    "4": "load_in_4bit", "4bit": "load_in_4bit", "4-bit": "load_in_4bit", "nf4": "load_in_4bit", "fp4": "load_in_4bit",
    "qlora": "load_in_4bit", "8": "load_in_8bit", "8bit": "load_in_8bit", "8-bit": "load_in_8bit",
    "int8": "load_in_8bit", "bitsandbytes-nf4": "load_in_4bit", "llm.int8": "load_in_8bit",
}  # fmt: skip
APEX = {"O1": "fp16", "O2": "fp16", "O3": "dtype"}
"""NVIDIA apex: O3 is pure float16."""
MAX_LOG_LINES = 2000
"""Versions are printed at the start."""

_VERSION = re.compile(r"\d{1,9}(?:\.\d{1,9})+")
_OPEN = re.compile(r"\s{0,20}(?:[<>~!]|before|after|since)")
"""A range of releases, not the one that ran."""
_STAGE = re.compile(r"(?:zero|ds_?z|stage|\bz)[-_ ]?([0-3])\b", re.IGNORECASE)
_WORD = re.compile(r"[\w.+-]+")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
_POWER = re.compile(r"^\s*2\s*(?:\*\*|\^)\s*(\d{1,3})\s*$")
_NODES = re.compile(r"(\d{1,4})[- ]?nodes?\b|\b(\d{1,4})\s{0,3}x\s{0,3}\d{1,4}\s{0,3}x?\s{0,3}[A-Z]", re.IGNORECASE)
_APPLE = re.compile(r"\bmps\b|\bapple\b|\bM[1-5]( (Pro|Max|Ultra))?\b", re.IGNORECASE)
_ROCM = re.compile(r"\b(rocm|hip|gfx\w+|radeon)\b", re.IGNORECASE)
NUMERIC = {
    "learning_rate", "adam_epsilon", "max_grad_norm", "per_device_train_batch_size", "gradient_accumulation_steps",
    "lora_r", "lora_alpha", "weight_decay", "max_length", "label_smoothing_factor",
}  # fmt: skip
_OPTIMIZER = re.compile(r"\w{0,40}(adam|adafactor|sgd|lion)\w{0,40}", re.IGNORECASE)


def read(case: Mapping[str, Any]) -> Facts:
    """Everything in the case that a chapter can use."""
    config = case.get("config")
    given: Mapping[str, Any] = cast("Mapping[str, Any]", config) if isinstance(config, Mapping) else {}
    words_given = " ".join(str(case.get(key) or "") for key in ("framework", "title"))
    settings = dict(_settings(given))
    facts = _arguments(settings)
    log = case.get("log")
    logged = " ".join(map(str, cast("list[Any]", log)[:MAX_LOG_LINES])) if isinstance(log, list) else ""
    return dataclasses.replace(
        facts,
        optimizer=facts.optimizer or Optimizer(),
        precision=_with_scaler(facts.precision or Precision(), given),
        model=_model(str(case.get("model") or case.get("title") or ""), given),
        training=dataclasses.replace(facts.training or Training(), model_name=str(case.get("model") or "") or None),
        hardware=_hardware(
            str(case.get("hardware") or ""), f"{given.get('device', '')} {given.get('gpu', '')} {words_given}"
        ),
        versions=dict(_versions(given, f"{words_given} {logged}")) or None,
        parallel=_parallel(given, words_given, str(case.get("hardware") or "")),
        disagreements=list(_disagreements(given)) or None,
    )


def _hardware(said: str, aside: str) -> Hardware | None:
    """The first card that is named; Apple and AMD by what they are called when no card of theirs is."""
    for text in (said, aside):
        places = {name: found.start() for name, pattern in _CARDS.items() if (found := pattern.search(text))}
        if places:  # "RTX 6000 Ada" begins where "RTX 6000" does
            first = min(places, key=lambda name: (places[name], -len(name)))
            return hardware.read(first)
        if _APPLE.search(text):
            return Hardware(name="Apple MPS", bfloat16=True)
        if _ROCM.search(text):
            return Hardware(name="AMD ROCm", bfloat16=True)
    return None


def _card(name: str) -> re.Pattern[str]:
    """A card in running text: without its brand, blanks or not, variants of memory and board behind it."""
    brand, _, short_name = name.rpartition("RTX ") if name.startswith("RTX ") else ("", "", name)
    words = r"[-\s]?".join(map(re.escape, short_name.split()))
    lead = r"(?:RTX[-\s]?|GTX[-\s]?)?" if name.startswith("RTX ") or brand else ""
    tail = r"(?![\w.])" if name != "V100" else r"S?(?![\w.])"
    return re.compile(rf"(?<![\w.]){lead}{words}{tail}", re.IGNORECASE)


_CARDS = {name: _card(name) for name in KNOWN}


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields of TrainingArguments with plain values: the first word where a remark follows."""
    for raw, value in config.items():
        leaf = _leaf(raw)
        key = ALIASES.get(leaf, leaf)
        if isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get("enabled")
        first = _first(value)
        if key in NUMERIC and isinstance(value, str):  # an expression with a remainder is no number
            first = None if "%" in value else first if number_in(str(first)) is not None else number_in(value)
        if isinstance(value, str) and ".half()" in value:
            yield "dtype", "float16"
        elif key == "dtype" and isinstance(value, str) and UNDER_AUTOCAST.search(value) and str(first) in HALVES:
            yield HALVES[str(first)], True
        elif key == "precision" and str(first) in WHOLE:
            yield "dtype", WHOLE[str(first)]
        elif key in ("quantization", "quantize", "bits") and str(first).lower() in _QUANTIZED:
            yield _QUANTIZED[str(first).lower()], True
        elif key in ("precision", "mixed_precision", "autocast") and str(first) in HALVES:
            yield HALVES[str(first)], True
        elif key in ("apex_opt_level", "opt_level"):
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


def number_in(text: str) -> float | None:
    """The first number that stands by itself in a text."""
    found = _NUMBER.search(text)
    return float(found[0]) if found else None


def _leaf(key: str) -> str:
    """`a.b` -> `b`, and `fp16.enabled` -> `fp16`."""
    path = [part for part in key.split(".") if part != "enabled"] or [key]
    return path[-1]


def _with_scaler(precision: Precision, config: Mapping[str, Any]) -> Precision:
    """The settings of the loss scaler, which TrainingArguments do not have."""
    if precision.compute != "float16":
        return precision
    said = {_leaf(key): _scale(value) for key, value in config.items()}
    power, static = said.get("initial_scale_power"), said.get("loss_scale")
    given = {
        "initial_scale": said.get("initial_scale") or said.get("init_scale") or (2.0**power if power else None),
        "min_scale": said.get("min_loss_scale"), "hysteresis": said.get("hysteresis"),
        "scale_window": said.get("loss_scale_window"),
    }  # fmt: skip
    if static:
        given |= {"initial_scale": static, "scaler": "static"}
    return dataclasses.replace(precision, **{key: value for key, value in given.items() if value is not None})


def _scale(value: Any) -> float | None:
    """A number, also one written as a power of two."""
    if isinstance(value, str) and (power := _POWER.match(value)):
        return 2.0 ** int(power[1])
    plain = number(value)
    return plain if plain is not None and 0 <= plain < 2.0**200 else None


def _disagreements(config: Mapping[str, Any]) -> Iterator[Disagreement]:
    """One switch of precision that two files of the run give differently: `ds.fp16.enabled` and `hf.fp16`."""
    for half, dtype in (("fp16", "float16"), ("bf16", "bfloat16")):
        said = {key: value for key, value in config.items() if _leaf(key) == half and isinstance(value, bool)}
        if len(set(said.values())) > 1:
            values = [dtype if value else "float32" for value in said.values()]
            yield Disagreement(key="precision.compute", values=values, sources=[f"the case: {key}" for key in said])


def _first(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = _WORD.search(value)
    word = found[0] if found else None
    lowered = str(word).lower()
    return {"true": True, "false": False, "on": True, "off": False, "none": None}.get(lowered, word)


def _arguments(settings: dict[str, Any]) -> Facts:
    """The settings as TrainingArguments, without those that have no valid value."""
    valid: dict[str, Any] = {}
    for key, value in settings.items():
        try:
            training_arguments.read({**valid, key: value}, "the case")
        except (UnreadableInput, ValueError, TypeError):
            continue
        valid[key] = value
    return training_arguments.read(valid, "the case")


def _model(name: str, config: Mapping[str, Any]) -> Model:
    family = family_of(name)
    tied = next((v for key in ("tie_word_embeddings", "weight_tying") if isinstance(v := config.get(key), bool)), None)
    dtype = "bfloat16" if family in IN_BFLOAT16 else None
    return Model(family=family, tied=tied, dtype=dtype)


def _whole(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else None


def _versions(config: Mapping[str, Any], words_given: str) -> Iterator[tuple[str, str]]:
    for name in (*RELEVANT, *PACKAGES):
        written = re.escape(name).replace(r"\-", "[-_ ]?")
        pattern = re.compile(rf"\b{written}(?: version)?\W{{1,4}}v?(\d+(?:\.\d+)+)", re.IGNORECASE)
        if in_words := pattern.search(words_given):
            yield PACKAGES.get(name, name), in_words[1]
    for key, value in config.items():
        named = key.removesuffix("_version").replace("_", "-").lower()
        package = PACKAGES.get(named, named)
        if package in RELEVANT and not _OPEN.match(str(value)) and (found := _VERSION.search(str(value))):
            yield package, found[0]


def _parallel(config: Mapping[str, Any], words_given: str, cards: str) -> Parallel | None:
    leaves = {_leaf(key): value for key, value in config.items()}
    stage = next((w for key in ("zero_stage", "stage", "zero") if (w := _whole(leaves, key)) is not None), None)
    said = _STAGE.search(f"{config.get('deepspeed', '')} {leaves.get('zero_stage', '')} {words_given}")
    stage = int(said[1]) if stage is None and said else stage
    words = f"{words_given} {' '.join(config)}".lower()
    several = _NODES.search(cards)
    nodes = int(several[1] or several[2]) if several else None
    if stage is None and "deepspeed" not in words:
        sharded = "fsdp" in words or config.get("fsdp")
        return Parallel(kind="fsdp", nodes=nodes, source="the case") if sharded else None
    overlap = _first(leaves.get("overlap_comm"))
    offload = leaves.get("offload_optimizer", leaves.get("offload"))
    return Parallel(
        kind="deepspeed", zero_stage=stage, overlap_comm=overlap if isinstance(overlap, bool) else None,
        reduce_bucket_size=_whole(leaves, "reduce_bucket_size"), nodes=nodes,
        offload_optimizer=offload if offload in ("cpu", "nvme") else None, source="the case",
    )  # fmt: skip
