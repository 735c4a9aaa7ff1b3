"""A configuration of NeMo (YAML of Hydra) -> facts: Lightning's Trainer, and a model with its optimizer in it."""

from __future__ import annotations

import dataclasses

from finitune.facts import Facts, Precision
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.keys import first, named
from finitune.sources.configs.lightning import MIXED, WHOLE
from finitune.sources.configs.tables import facts_of, mixed, nested, unused, whole
from finitune.sources.text import section, word

TABLES = {
    "optimizer": {
        "name": ("model.optim.name",), "lr": ("model.optim.lr",), "eps": ("model.optim.eps",),
        "weight_decay": ("model.optim.weight_decay",),
        "clip": ("trainer.gradient_clip_val",), "batch": ("model.micro_batch_size",),
        "global_batch": ("model.global_batch_size",), "accumulation": ("trainer.accumulate_grad_batches",),
        "max_steps": ("trainer.max_steps",), "epochs": ("trainer.max_epochs",), "schedule": ("model.optim.sched.name",),
        "warmup_steps": ("model.optim.sched.warmup_steps",),
    },
    "adapter": {
        "rank": ("model.peft.lora_tuning.adapter_dim",), "alpha": ("model.peft.lora_tuning.alpha",),
        "dropout": ("model.peft.lora_tuning.adapter_dropout",),
    },
    "batching": {"max_length": ("model.data.train_ds.max_seq_length", "model.encoder_seq_length")},
    "training": {"model_name": ("model.restore_from_path", "model.pretrained_checkpoint.restore_from_path")},
}  # fmt: skip
SCALE = ("model.native_amp_init_scale",)
GROWTH = ("model.native_amp_growth_interval",)
HYSTERESIS = ("model.hysteresis",)
DEFAULT_SCALE = 2.0**32
"""`native_amp_init_scale` of NeMo."""


def recognises(data: Settings) -> bool:
    """True for a trainer beside a model that holds its optimizer."""
    return "trainer" in data and isinstance(section(data, "model").get("optim"), dict)


def of_flags(flags: Settings) -> Settings | None:
    """The settings that dotted flags say; None where they are not NeMo's."""
    found = nested({key: value for key, value in flags.items() if "." in key})
    return found if recognises(found) else None


def read(data: Settings, file: str) -> Facts:
    """The settings of the trainer."""
    scheme = word(section(section(data, "model"), "peft"), "peft_scheme")
    facts = facts_of(
        data, file, TABLES, framework="nemo", lora=None if scheme is None else "lora" in scheme,
        precision=_precision(data, file),
    )  # fmt: skip
    if facts.optimizer is None or facts.optimizer.name is None:
        return facts
    name = facts.optimizer.name.rpartition("fused_")[2]  # distributed_fused_adam
    return dataclasses.replace(facts, optimizer=dataclasses.replace(facts.optimizer, name=name))


def _precision(data: Settings, file: str) -> Precision | None:
    said = str(section(data, "trainer").get("precision") or "")
    source = f"{file}: trainer.precision"
    if said in MIXED:
        return mixed(
            MIXED[said], source, "nemo", initial_scale=first(data, file, SCALE, float) or DEFAULT_SCALE,
            scale_window=first(data, file, GROWTH, int), hysteresis=first(data, file, HYSTERESIS, int),
        )  # fmt: skip
    return whole(WHOLE[said], source, "nemo") if said in WHOLE else None


def named_data(data: Settings) -> list[str]:
    """Its first file for training."""
    return named(section(section(section(data, "model"), "data"), "train_ds"), ("file_names", "file_path"))


FORMAT = Format(
    name="nemo",
    recognises=recognises,
    read=read,
    of_flags=of_flags,
    takes_flags=True,
    open_ended=True,
    data=named_data,
    tables=TABLES,
    title=lambda _data: "NeMo",
    unused=lambda data: unused(data, TABLES, (*SCALE, *GROWTH, *HYSTERESIS, "trainer.precision", "peft_scheme")),
)
