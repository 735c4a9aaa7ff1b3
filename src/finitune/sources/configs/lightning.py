"""The file that `LightningCLI` reads and saves (YAML) -> facts; the arguments of the user's own module are passed over.

Precisions as of Lightning 2: `16-mixed` is autocast with a GradScaler and float32 weights, `16-true` casts the weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from finitune.facts import DEFAULT_LOSS_SCALE, Adapter, Facts, Optimizer, Parallel, Precision, Training
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.keys import group
from finitune.sources.text import section, whole, word

KEYS = {
    "accelerator", "devices", "strategy", "precision", "max_epochs", "max_steps", "gradient_clip_val",
    "accumulate_grad_batches", "fast_dev_run", "num_nodes",
}  # fmt: skip
"""Arguments of Lightning's Trainer."""

MIXED = {"16-mixed": "float16", "16": "float16", "bf16-mixed": "bfloat16", "bf16": "bfloat16"}
WHOLE = {"16-true": "float16", "bf16-true": "bfloat16", "32-true": "float32", "32": "float32", "64-true": "float64"}

OPTIMIZER_KEYS = {
    "lr": ("optimizer.init_args.lr", "model.init_args.learning_rate", "model.learning_rate", "model.init_args.lr"),
    "eps": ("optimizer.init_args.eps",), "weight_decay": ("optimizer.init_args.weight_decay",),
    "accumulation": ("trainer.accumulate_grad_batches",), "max_steps": ("trainer.max_steps",),
    "epochs": ("trainer.max_epochs",), "clip": ("trainer.gradient_clip_val",),
    "batch": ("data.init_args.batch_size", "data.batch_size"),
}  # fmt: skip
ADAPTER_KEYS = {
    "rank": ("model.init_args.lora_r", "model.lora_r"), "alpha": ("model.init_args.lora_alpha", "model.lora_alpha"),
}  # fmt: skip
TRAINING_KEYS = {
    "gradient_checkpointing": ("model.init_args.gradient_checkpointing", "model.gradient_checkpointing"),
}  # fmt: skip


def recognises(data: Settings) -> bool:
    """True for a mapping whose section `trainer` holds arguments of Lightning's Trainer."""
    nemo = section(data, "model").get("optim")  # NeMo's models hold their optimizer
    others = {"input_features", "base_model"} & data.keys()
    return bool(KEYS & section(data, "trainer").keys()) and not others and not isinstance(nemo, Mapping)


def read(data: Settings, file: str) -> Facts:
    """The settings of the trainer, and the rates and adapters that modules are usually given."""
    named = word(section(data, "optimizer"), "class_path")
    trainer = section(data, "trainer")
    off = {"clip": 0.0} if "gradient_clip_val" in trainer and trainer["gradient_clip_val"] is None else {}
    adapter = group(Adapter, data, file, ADAPTER_KEYS)
    return Facts(
        precision=_precision(data, file),
        optimizer=group(Optimizer, data, file, OPTIMIZER_KEYS, name=named and named.rpartition(".")[2].lower(), **off),
        parallel=_parallel(data, file),
        adapter=adapter and group(Adapter, data, file, ADAPTER_KEYS, kind="lora"),
        training=group(Training, data, file, TRAINING_KEYS, framework="lightning"),
    )  # fmt: skip


def precision_keys(dtype: str, data: Settings) -> dict[str, Any]:
    """One word; the weights stay as they are held, but float16 weights have no loss scale."""
    held = str(section(data, "trainer").get("precision") or "").endswith("-true")
    words = {"float16": "16-mixed", "bfloat16": "bf16-true" if held else "bf16-mixed", "float32": "32-true"}
    return {"trainer.precision": words[dtype]}


def _precision(data: Settings, file: str) -> Precision | None:
    said = str(section(data, "trainer").get("precision") or "")
    dtype = MIXED.get(said) or WHOLE.get(said)
    if dtype is None:
        return None
    scaled = said in MIXED and dtype == "float16"
    return Precision(
        compute=dtype,
        parameters="float32" if said in MIXED else dtype,
        scaler="dynamic" if scaled else "none",
        initial_scale=DEFAULT_LOSS_SCALE if scaled else None,
        requested_by="lightning",
        casts_module=said in WHOLE,
        source=f"{file}: trainer.precision",
    )


def _parallel(data: Settings, file: str) -> Parallel | None:
    """How the strategy distributes the run; `auto` on one device does not."""
    trainer = section(data, "trainer")
    strategy = word(trainer, "strategy") or "auto"
    nodes = whole(trainer, "num_nodes", file)
    kind = next((kind for kind in ("deepspeed", "fsdp", "ddp") if kind in strategy), None)
    if kind is None and strategy in ("auto", "single_device") and trainer.get("devices") in (1, "1"):
        kind = "none"
    stage = re.search(r"stage_(\d)", strategy)
    if kind is None:
        return None
    return Parallel(kind=kind, zero_stage=int(stage[1]) if stage else None, nodes=nodes, source=file)


FORMAT = Format(
    name="lightning",
    recognises=recognises,
    read=read,
    open_ended=True,  # modules and data modules have arguments of their own
    tables={"optimizer": OPTIMIZER_KEYS, "adapter": ADAPTER_KEYS, "training": TRAINING_KEYS},
    spelling={"trainer.precision": ("trainer.precision",)},
    precision_keys=precision_keys,
)
