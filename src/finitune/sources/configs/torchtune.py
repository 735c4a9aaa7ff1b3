"""A recipe of torchtune (YAML) -> facts: `_component_` names what is built, the rest are its arguments.

`dtype` holds for weights and computation alike; torchtune has no loss scaler, and refuses fp16 for its own recipes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from finitune.facts import Facts, Optimizer, Precision, Quantization
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.keys import dtype_of
from finitune.sources.configs.launches import RECIPE
from finitune.sources.configs.tables import facts_of, nested, unused, whole
from finitune.sources.text import section, word

TABLES = {
    "optimizer": {
        "lr": ("optimizer.lr",), "eps": ("optimizer.eps",), "weight_decay": ("optimizer.weight_decay",),
        "clip": ("clip_grad_norm",), "batch": ("batch_size",), "accumulation": ("gradient_accumulation_steps",),
        "epochs": ("epochs",), "max_steps": ("max_steps",), "warmup_steps": ("lr_scheduler.num_warmup_steps",),
    },
    "adapter": {
        "rank": ("model.lora_rank",), "alpha": ("model.lora_alpha",), "dropout": ("model.lora_dropout",),
        "target_modules": ("model.lora_attn_modules",),
    },
    "batching": {"packing": ("dataset.packed",), "max_length": ("tokenizer.max_seq_len",)},
    "training": {
        "model_name": ("checkpointer.checkpoint_dir",), "compiled": ("compile",),
        "gradient_checkpointing": ("enable_activation_checkpointing",), "train_on_prompt": ("dataset.train_on_input",),
    },
}  # fmt: skip
SHORT = {"float32": "fp32", "bfloat16": "bf16"}
"""How it spells a dtype."""

COMPONENT = "_component_"
BUILT = ("model", "optimizer", "tokenizer", "dataset", "loss", "checkpointer")


def recognises(data: Settings) -> bool:
    """True where a part of a recipe names its component."""
    return RECIPE in data or any(COMPONENT in section(data, part) for part in BUILT)


def of_flags(flags: Settings) -> Settings | None:
    """The settings that `tune run RECIPE` has beside its file; None for other launches."""
    return nested(flags) if RECIPE in flags else None


def left_out(data: Settings, file: str) -> Iterator[str]:
    """A file that comes with torchtune and is named by its place there."""
    name = word(data, "config")
    if RECIPE in data and name and not name.endswith((".yaml", ".yml")):
        yield f"{file}: {name} comes with torchtune, and is read where `tune cp {name} FILE` has copied it"


def read(data: Settings, file: str) -> Facts:
    """The settings of the recipe."""
    builder = word(section(data, "model"), COMPONENT) or word(data, RECIPE) or ""
    adapted = "lora_rank" in section(data, "model") or "lora" in builder.rpartition(".")[2]
    named = word(section(data, "optimizer"), COMPONENT)
    facts = facts_of(
        data, file, TABLES, framework="torchtune", lora=adapted if builder else None, precision=_precision(data, file),
        quantization=_quantization(builder, data, file),
    )  # fmt: skip
    if named is None:
        return facts
    optimizer = facts.optimizer or Optimizer(source=file)
    return dataclasses.replace(facts, optimizer=dataclasses.replace(optimizer, name=named.rpartition(".")[2].lower()))


def spelled(key: str, value: Any, data: Settings) -> dict[str, Any] | None:  # noqa: ARG001
    """One short word for the dtype of weights and computation."""
    return {"dtype": SHORT[value]} if key == "dtype" and value in SHORT else None


def precision_keys(dtype: str, data: Settings) -> dict[str, Any] | None:  # noqa: ARG001
    """Its recipes refuse float16."""
    return {"dtype": SHORT[dtype]} if dtype != "float16" else None


def _precision(data: Settings, file: str) -> Precision | None:
    dtype = dtype_of(word(data, "dtype"))
    return whole(dtype, f"{file}: dtype", "torch") if dtype else None


def _quantization(builder: str, data: Settings, file: str) -> Quantization | None:
    if not builder.rpartition(".")[2].startswith("qlora"):
        return None
    compute = dtype_of(word(data, "dtype"))
    return Quantization(bits=4, kind="nf4", compute_dtype=compute, source=f"{file}: model.{COMPONENT}")


FORMAT = Format(
    name="torchtune",
    recognises=recognises,
    read=read,
    of_flags=of_flags,
    takes_flags=True,
    left_out=left_out,
    open_ended=True,
    tables=TABLES,
    spelled=spelled,
    precision_keys=precision_keys,
    title=lambda _data: "torchtune",
    unused=lambda data: unused(data, TABLES, ("dtype", COMPONENT)),
)
