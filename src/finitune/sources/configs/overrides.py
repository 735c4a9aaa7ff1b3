"""Dotted settings on the command line of a program of Hydra or LightningCLI (`model.lr=1e-4`) -> facts.

The sections are the program's own; a name such as `lr` or `gradient_clip_val` means the same in all of them.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from finitune.facts import Facts
from finitune.sources.configs import lightning, training_arguments
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.tables import leaves, nested

USUAL = {
    "lr": "learning_rate", "base_lr": "learning_rate", "max_lr": "learning_rate", "gradient_clip_val": "max_grad_norm",
    "clip_grad": "max_grad_norm", "grad_clip": "max_grad_norm", "clip_grad_norm": "max_grad_norm",
    "gradient_clipping": "max_grad_norm", "accumulate_grad_batches": "gradient_accumulation_steps",
    "grad_accum_steps": "gradient_accumulation_steps", "batch_size": "per_device_train_batch_size",
    "max_epochs": "num_train_epochs", "epochs": "num_train_epochs", "micro_batch_size": "per_device_train_batch_size",
}  # fmt: skip
"""Names that programs have for the arguments of transformers."""

OF_OPTIMIZERS = {"eps": "adam_epsilon", "weight_decay": "weight_decay"}
OPTIMIZERS = ("optimizer", "optim")
OTHER_BATCHES = ("val", "eval", "test", "valid", "validation", "predict")
SAYING = (training_arguments.KEYS - {"output_dir", "logging_steps"}) | {"precision"}


def usual(key: str) -> str | None:
    """The argument of transformers that a dotted key means; None for one that means none."""
    *sections, name = key.lstrip("+~").split(".")
    if any(part in OTHER_BATCHES for section in sections for part in section.split("_")):
        return None
    if name in OF_OPTIMIZERS:
        return OF_OPTIMIZERS[name] if any("optim" in section for section in sections) else None
    named = USUAL.get(name, name)
    return named if named in SAYING else None


def of_flags(flags: Settings) -> Settings | None:
    """The settings that dotted flags say; None where none of them says anything here."""
    if not any("." in key and usual(key) for key in flags):
        return None
    chosen = {key for key in flags if any(other.startswith(f"{key}.") for other in flags)}  # a group of Hydra's
    return nested({f"{key}.name" if key in chosen else key: value for key, value in flags.items()})


def read(data: Settings, file: str) -> Facts:
    """The settings of the program."""
    trainer = data.get("trainer")
    lit = isinstance(trainer, dict) and bool(lightning.KEYS & trainer.keys())
    found: dict[str, Any] = {}
    for key, value in leaves(data):
        if name := usual(key):
            found.setdefault(name, value)
    if (name := _optimizer(data)) is not None:
        found["optim"] = name
    asked = found.pop("precision", None)
    facts = training_arguments.read(found, file, framework="lightning" if lit else "torch")
    if asked is None:
        return facts
    own = lightning.read({"trainer": {"precision": asked}}, file).precision
    return dataclasses.replace(facts, precision=own or facts.precision)


def _optimizer(data: Settings) -> str | None:
    """The optimizer that is chosen: `optimizer=sgd`, `optim.name=adamw`, `optimizer._target_=torch.optim.SGD`."""
    for key, value in leaves(data):
        *sections, name = key.split(".")
        of = name in OPTIMIZERS or (
            name in ("name", "type", "_target_") and sections[-1:] and sections[-1] in OPTIMIZERS
        )
        if of and isinstance(value, str):
            known = re.search(r"adam|sgd", value, re.IGNORECASE)
            return {"adam": "adamw", "sgd": "sgd"}[known[0].lower()] if known else value.rpartition(".")[2].lower()
    return None


OVERRIDES = Format(
    name="overrides",
    recognises=lambda _data: False,  # a file with such keys is Hydra's own
    read=read,
    of_flags=of_flags,
    open_ended=True,
    title=lambda _data: "overrides of Hydra",
    editable=False,
)
