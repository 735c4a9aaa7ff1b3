"""A configuration of Hydra (YAML) -> the settings in it: `_target_` names what is built, `defaults` the files below it.

What is built by Lightning, torch and transformers is read as their own files are; other parts are the program's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from finitune.facts import Facts
from finitune.sources.configs import composition, lightning, nemo, training_arguments, verl
from finitune.sources.configs.composition import Keys, Origin
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.interpolation import is_open
from finitune.sources.configs.tables import MAX_DEPTH, leaves
from finitune.sources.text import config_of, section, short, word

TARGET = "_target_"
MISSING = "files of defaults that are not here"
"""The key under which `composed` leaves what it did not find."""

OPTIMIZERS = ("optimizer", "optim")
OPTIMIZER = re.compile(r"(?:Adam|SGD|Lion|Muon|Adafactor|RMSprop|LAMB|Lamb)\w*$", re.IGNORECASE)
LOADED = {"torch_dtype": "torch_dtype", "dtype": "torch_dtype", "attn_implementation": "attn_implementation"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """A mapping of the tree and the keys that lead to it."""

    keys: Keys
    settings: Settings

    @property
    def name(self) -> str:
        return self.keys[-1] if self.keys else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathered:
    """Settings in the words of a framework, and where in the tree each was found."""

    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    places: dict[Keys, list[Keys]] = field(default_factory=dict[Keys, list[Keys]])
    """Of each key those of the tree; the last one counts."""
    sections: dict[Keys, Keys] = field(default_factory=dict[Keys, Keys])

    def take(self, part: _Part, names: Mapping[str, Keys] | None = None, under: Keys = ()) -> None:
        """The plain values of a part, those that `names` has under their names."""
        for key, value in part.settings.items():
            if key == TARGET or isinstance(value, Mapping) or (names is not None and key not in names):
                continue
            *above, last = (*under, key) if names is None else names[key]
            inner = self.settings
            for name in above:
                inner = inner.setdefault(name, {})
            inner[last] = value
            self.places.setdefault((*above, last), []).append((*part.keys, key))
        if names is None:
            self.sections[under] = part.keys

    def drop(self, *names: str) -> None:
        for name in names:
            self.settings.pop(name, None)
            self.places.pop((name,), None)


def recognises(data: Settings) -> bool:
    """True for a list of defaults, or where a part names what it builds."""
    if verl.recognises(data) or nemo.recognises(data):
        return False
    return isinstance(data.get("defaults"), list) or any(TARGET in one.settings for one in _all(data))


def composed(path: Path, data: Settings) -> dict[str, Any]:
    """The settings with those of the files that `defaults` names.

    Raises UnreadableInput for a file that is there and damaged.
    """
    if not isinstance(data.get("defaults"), list):
        return dict(data)
    found = composition.of_file(path, data)
    missing = {MISSING: list(found.missing)} if found.missing else {}
    return {"defaults": data["defaults"], **found.settings, **missing}


def _all(data: Settings) -> Iterator[_Part]:
    """The file as a whole, where it says what it builds, and every mapping in it."""
    if TARGET in data:
        yield _Part(keys=(), settings=data)
    yield from _sections(data)


def _sections(data: Settings, above: Keys = ()) -> Iterator[_Part]:
    """Every mapping in the settings with its keys, outermost first."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield _Part(keys=(*above, key), settings=cast(Settings, value))
            if len(above) < MAX_DEPTH:
                yield from _sections(cast(Settings, value), (*above, key))


def follows(data: Settings) -> Iterator[str | Settings]:
    """The settings of Lightning's Trainer, the optimizer, transformers and the loading of a model; files not found."""
    yield from (one.settings for one in _gathered(data))
    yield from cast(list[str], data.get(MISSING) or [])


def _gathered(data: Settings) -> Iterator[_Gathered]:
    parts = list(_all(data))
    trainer = next((one for one in parts if _builds(one, "Trainer") and lightning.KEYS & one.settings.keys()), None)
    trainer = trainer or next((one for one in parts if one.name == "trainer" and _lit(one)), None)
    optimizer = next((one for one in parts if OPTIMIZER.search(_target(one))), None)
    optimizer = optimizer or next((one for one in parts if one.name in OPTIMIZERS and "lr" in one.settings), None)
    flat = _loading(data, parts)
    if trainer is None and optimizer is not None:
        kept = {"lr": "learning_rate", "eps": "adam_epsilon", "weight_decay": "weight_decay"}
        flat.take(optimizer, {key: (name,) for key, name in kept.items()})
        if named := _target(optimizer).rpartition(".")[2].lower():
            flat.settings["optim"] = named
    for one in parts:
        if "TrainingArguments" in _target(one) or _builds(one, "Config") or (one is not trainer and _hf(one)):
            flat.take(one)
    if trainer is not None and str(trainer.settings.get("precision")).endswith("-true"):
        flat.drop("torch_dtype", "dtype")  # the module is cast
    if flat.settings:  # before the trainer: the dtype of the weights is that of loading
        yield flat
    if trainer is None:
        return
    found = _Gathered(settings={"trainer": {}})
    found.take(trainer, under=("trainer",))
    if optimizer is not None:
        named = _target(optimizer) or word(optimizer.settings, "name")
        found.settings["optimizer"] = {"class_path": named, "init_args": {}}
        found.take(optimizer, under=("optimizer", "init_args"))
    batch = next((one for one in parts if "batch_size" in one.settings and "eval" not in one.name), None)
    if batch is not None:
        found.take(batch, {"batch_size": ("data", "batch_size")})
    yield found


def _loading(data: Settings, parts: Sequence[_Part]) -> _Gathered:
    """How the model is loaded, and its name."""
    flat = _Gathered()
    model = next((one for one in parts if _target(one).endswith("from_pretrained")), None)
    if model is not None:
        flat.take(model, {key: (name,) for key, name in LOADED.items() if model.settings.get(key) is not None})
    keys = ("pretrained_model_name_or_path", "model_name_or_path", "model_name")
    of_model: Settings = model.settings if model else {}
    names = [word(part, key) for key in keys for part in (of_model, section(data, "model"), data)]
    name = next((one for one in names if one), None)
    if name:
        flat.settings["model_name_or_path"] = name
    return flat


def stands(data: Settings, gathered: Settings, file: str) -> Mapping[Keys, Origin]:
    """Where each of the gathered settings stands in the files of the tree, and each section that may be given more."""
    found = next((one for one in _gathered(data) if one.settings == gathered), None)
    path = Path(file)
    if found is None or not path.is_file():
        return {}
    origins = composition.of_file(path, config_of(path)).origins
    out: dict[Keys, Origin] = {}
    for keys, places in found.places.items():
        origin = origins.get(places[-1])
        if origin is None:
            continue
        said = ".".join(keys)
        if len(set(places)) > 1:
            both = " and ".join(".".join(one) for one in places)
            origin = replace(origin, why_not=f"{said} stands in two places of the tree, {both}: change it by hand")
        elif is_open(origin.written):
            why = f"{said} is {short(origin.written)} in {origin.file}: change what fills it in"
            origin = replace(origin, why_not=why)
        out[keys] = origin
    for keys, whole in found.sections.items():
        if target := origins.get((*whole, TARGET)):
            out[keys] = replace(target, path=target.path[:-1], whole=whole)
    return out


def parts(data: Settings, file: str) -> Sequence[Path]:
    """The folders of its groups, which hold options: those that are chosen and the others."""
    return composition.of_file(Path(file), config_of(Path(file))).groups if "defaults" in data else ()


def _target(part: _Part) -> str:
    return word(part.settings, TARGET) or ""


def _builds(part: _Part, what: str) -> bool:
    named = _target(part).rpartition(".")[2]
    return named == what or (what == "Config" and named in ("SFTConfig", "DPOConfig", "GRPOConfig", "PPOConfig"))


def _lit(part: _Part) -> bool:
    return len(lightning.KEYS & part.settings.keys()) > 1


def _hf(part: _Part) -> bool:
    """Arguments of transformers under a name of the program's own."""
    own = {key for key, value in part.settings.items() if not isinstance(value, Mapping)} & training_arguments.KEYS
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
    stands=stands,
    parts=parts,
)
