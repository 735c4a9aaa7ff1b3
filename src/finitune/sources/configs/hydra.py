"""A configuration of Hydra (YAML) -> the settings in it: `_target_` names what is built, `defaults` the files below it.

What is built by Lightning, torch and transformers is read as their own files are; other parts are the program's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from finitune.facts import Facts
from finitune.sources.configs import lightning, nemo, training_arguments, verl
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.tables import MAX_DEPTH, leaves
from finitune.sources.text import config_of, section, word

TARGET = "_target_"
MISSING = "files of defaults that are not here"
"""The key under which `composed` leaves what it did not find."""

MAX_FILES = 30
OPTIMIZER = re.compile(r"(?:Adam|SGD|Lion|Muon|Adafactor|RMSprop|LAMB|Lamb)\w*$", re.IGNORECASE)
LOADED = {"torch_dtype": "torch_dtype", "dtype": "torch_dtype", "attn_implementation": "attn_implementation"}


def recognises(data: Settings) -> bool:
    """True for a list of defaults, or where a part names what it builds."""
    if verl.recognises(data) or nemo.recognises(data):
        return False
    return isinstance(data.get("defaults"), list) or any(TARGET in part for _, part in _sections(data))


def composed(path: Path, data: Settings) -> dict[str, Any]:
    """The settings with those of the files that `defaults` names; what stands in the file itself wins.

    Raises UnreadableInput for a file that is there and damaged.
    """
    named: Any = data.get("defaults")
    if not isinstance(named, list):
        return dict(data)
    found: dict[str, Any] = {}
    missing: list[str] = []
    for one in cast(list[Any], named)[:MAX_FILES]:
        group, option = _choice(one)
        if option is None:
            continue
        place = next((p for p in _places(path, group, option) if p.is_file()), None)
        if place is None:
            missing.append(str(_named(group, option)))
            continue
        inner = config_of(place)
        inner.pop("defaults", None)
        _merge(found, {group.partition("@")[0].rpartition("/")[2]: inner} if group else inner)
    _merge(found, {key: value for key, value in data.items() if key != "defaults"})
    return {"defaults": named, **found, **({MISSING: missing} if missing else {})}


def _choice(one: Any) -> tuple[str, str | None]:
    """The group and the option of an entry; no option for what names no file."""
    if isinstance(one, str):
        return "", None if one == "_self_" else one
    if isinstance(one, Mapping) and len(cast(Settings, one)) == 1:
        ((group, option),) = cast(Settings, one).items()
        group = str(group).removeprefix("optional ").removeprefix("override ").lstrip("/")
        if isinstance(option, str) and not group.startswith("hydra") and "${" not in option:
            return group, option
    return "", None


def _places(path: Path, group: str, option: str) -> Iterator[Path]:
    """Where the file of an option lies: below the file that names it, or beside the folder that it is in."""
    name = _named(group, option)
    if ".." not in name.parts and not name.is_absolute():
        yield from (path.parent / name, path.parent.parent / name)


def _named(group: str, option: str) -> Path:
    return Path(group.partition("@")[0]) / f"{option.removesuffix('.yaml')}.yaml"


def _merge(into: dict[str, Any], more: Settings) -> None:
    for key, value in more.items():
        held = into.get(key)
        if isinstance(held, dict) and isinstance(value, Mapping):
            _merge(cast(dict[str, Any], held), cast(Settings, value))
        else:
            into[key] = value


def _sections(data: Settings, depth: int = 0) -> Iterator[tuple[str, Settings]]:
    """Every mapping in the settings with its key, outermost first."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield key, cast(Settings, value)
            if depth < MAX_DEPTH:
                yield from _sections(cast(Settings, value), depth + 1)


def follows(data: Settings) -> Iterator[str | Settings]:
    """The settings of Lightning's Trainer, the optimizer, transformers and the loading of a model; files not found."""
    parts = list(_sections(data))
    trainer = next((part for _, part in parts if _builds(part, "Trainer") and lightning.KEYS & part.keys()), None)
    trainer = trainer or next((part for key, part in parts if key == "trainer" and _lit(part)), None)
    optimizer = next((part for _, part in parts if OPTIMIZER.search(_target(part))), None)
    optimizer = optimizer or next((part for key, part in parts if key in ("optimizer", "optim") and "lr" in part), None)
    models = [part for _, part in parts if _target(part).endswith("from_pretrained")]
    model: Settings = models[0] if models else dict[str, Any]()
    arguments: dict[str, Any] = {}
    for _, part in parts:
        if "TrainingArguments" in _target(part) or _builds(part, "Config") or (part is not trainer and _hf(part)):
            arguments |= _without_targets(part)
    loaded = {LOADED[key]: value for key, value in model.items() if key in LOADED and value is not None}
    keys = ("pretrained_model_name_or_path", "model_name_or_path", "model_name")
    names = [word(part, key) for key in keys for part in (model, section(data, "model"), data)]
    name = next((one for one in names if one), None)
    if name:
        loaded["model_name_or_path"] = name
    if trainer is None and optimizer is not None:
        kept = {"lr": "learning_rate", "eps": "adam_epsilon", "weight_decay": "weight_decay"}
        arguments = {kept[key]: value for key, value in optimizer.items() if key in kept} | arguments
    flat = {**loaded, **arguments}
    if trainer is not None and str(trainer.get("precision")).endswith("-true"):
        flat = {key: value for key, value in flat.items() if key not in ("torch_dtype", "dtype")}  # the module is cast
    if flat:  # before the trainer: the dtype of the weights is that of loading
        yield flat
    if trainer is not None:
        said: dict[str, Any] = {"trainer": _without_targets(trainer)}
        if optimizer is not None:
            named = _target(optimizer) or word(optimizer, "name")
            said["optimizer"] = {"class_path": named, "init_args": _without_targets(optimizer)}
        batch = next((part["batch_size"] for key, part in parts if "batch_size" in part and "eval" not in key), None)
        yield {**said, **({"data": {"batch_size": batch}} if batch is not None else {})}
    yield from cast(list[str], data.get(MISSING) or [])


def _without_targets(part: Settings) -> dict[str, Any]:
    """Its plain values."""
    return {key: value for key, value in part.items() if key != TARGET and not isinstance(value, Mapping)}


def _target(part: Settings) -> str:
    return word(part, TARGET) or ""


def _builds(part: Settings, what: str) -> bool:
    named = _target(part).rpartition(".")[2]
    return named == what or (what == "Config" and named in ("SFTConfig", "DPOConfig", "GRPOConfig", "PPOConfig"))


def _lit(part: Settings) -> bool:
    return len(lightning.KEYS & part.keys()) > 1


def _hf(part: Settings) -> bool:
    """Arguments of transformers under a name of the program's own."""
    own = {key for key, value in part.items() if not isinstance(value, Mapping)} & training_arguments.KEYS
    return len(own - {"max_steps", "output_dir"}) > 1


def title(data: Settings) -> str:
    """`Lightning, by Hydra`."""
    lit = any("trainer" in part for part in follows(data) if isinstance(part, Mapping))
    return "Lightning, by Hydra" if lit else "Hydra"


def unused(data: Settings) -> int:
    """How many of its values say nothing here."""
    flat = [key for part in follows(data) if isinstance(part, Mapping) for key, _ in leaves(part)]
    used = {key.rpartition(".")[2] for key in flat} | {TARGET, *LOADED, "defaults", MISSING}
    every = [key for key, _ in leaves(data) if not key.startswith("hydra.")]
    return sum(key.rpartition(".")[2] not in used for key in every)


FORMAT = Format(
    name="hydra",
    recognises=recognises,
    read=lambda _data, _file: Facts(),
    follows=follows,
    title=title,
    unused=unused,
    editable=False,  # a key may stand in any of its files, and be overridden by any other
)
