"""The keys of a patch -> the keys of the files that a run has, each in the words of its format.

Patches of findings are in the words of transformers, and of DeepSpeed for what only DeepSpeed knows. The tables by
which the formats are read tell under which of its own names each keeps the same thing; the rest stands in `Format`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from finitune.finding import Renamed
from finitune.sources.configs import training_arguments
from finitune.sources.configs.composition import Origin
from finitune.sources.configs.format import Format
from finitune.sources.configs.known_keys import fields_of
from finitune.sources.text import section

HALVES = {
    "fp16": "float16", "fp16.enabled": "float16", "bf16": "bfloat16", "bf16.enabled": "bfloat16",
}  # fmt: skip
REPEATS = ("pad_token_id",)
"""Keys that repeat what another one says: where no file holds them, nothing is missing."""
OF_MODEL = 2
"""Precedence of the files of a model directory."""
NOTHING = object()

Path = tuple[str, ...]
Kind = Literal["json", "yaml", "shell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Settings where they stand: the file, how it is written, and the sections that lead to them."""

    file: str
    kind: Kind
    format: Format
    data: Mapping[str, Any]
    under: Path = ()
    launch: int = 0
    """Of the launches of a script, the one that these flags belong to."""
    grows: bool = True
    """Whether keys may be added."""
    lost: Collection[str] = ()
    """Keys that count elsewhere: the launch types them over the file."""
    stands: Mapping[Path, Origin] | None = None
    """Of settings that were gathered from the files of a tree, of which `file` is the first: where each stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key of one file and its new value, or its new name."""

    standing: Standing
    path: Path
    value: Any

    @property
    def origin(self) -> Origin | None:
        """Where it is written, or would be; None where it has no place."""
        one = self.standing
        if one.stands is None:
            keys = (*one.under, *self.path)
            return Origin(file=one.file, path=keys, whole=keys)
        section = one.stands.get(self.path[:-1])
        if self.path in one.stands or section is None:
            return one.stands.get(self.path)
        last = self.path[-1:]
        return replace(section, path=(*section.path, *last), whole=(*section.whole, *last))

    @property
    def file(self) -> str:
        return self.origin.file if self.origin else self.standing.file

    @property
    def keys(self) -> Path:
        """Those in its file that lead to it."""
        return self.origin.path if self.origin else (*self.standing.under, *self.path)

    @property
    def key(self) -> str:
        keys = self.keys
        if isinstance(self.value, Renamed):
            keys = (*self.standing.under, *_path(self.value.renamed_to))
        return ".".join(keys)


class NoPlace(ValueError):
    """A key of a patch that no file of the run takes; the message says which."""


def settled(patch: Mapping[str, Any], standings: Sequence[Standing], first: str | None = None) -> list[Setting]:
    """What to set where. A file that has a key already is set there; else the file that is asked first and takes it.

    `first` is the file of the finding. Values that are already so are left out. Raises NoPlace.
    """
    ranked = sorted(standings, key=lambda one: (one.file != first, one.format.precedence > 0))
    found: list[Setting] = []
    flat = dict(_flat(patch))
    asked = {HALVES[key]: value for key, value in flat.items() if key in HALVES and isinstance(value, bool)}
    if asked:
        found += _precision(asked, patch, ranked)
    for key, value in flat.items():
        if isinstance(value, Renamed):
            found.append(_renamed(key, value, [one for one in ranked if one.file == first]))
        elif not (key in HALVES and isinstance(value, bool)):
            found += _placed(key, value, ranked)
    changing = [one for one in found if not _is_so(one) and ".".join(one.path) not in one.standing.lost]
    for one in changing:
        if one.origin is None:
            raise NoPlace(f"{'.'.join(one.path)}: no file here takes it")
        if one.origin.why_not:
            raise NoPlace(one.origin.why_not)
    return changing


def _precision(asked: Mapping[str, bool], patch: Mapping[str, Any], ranked: Sequence[Standing]) -> list[Setting]:
    """The dtype of compute is said in the words of each file that says one, else of the first that can."""
    wanted = next((dtype for dtype, on in asked.items() if on), "float32")
    able: list[tuple[Standing, Mapping[str, Any]]] = []
    for one in ranked:
        keys = one.format.precision_keys(wanted, one.data) if one.format.precision_keys else None
        if keys:
            able.append((one, keys))
    said = [(one, keys) for one, keys in able if _says_precision(one)] or able[:1]
    if not said:
        raise NoPlace(f"{', '.join(patch)}: no file here takes it")
    return [
        Setting(standing=one, path=_path(key), value=value)
        for one, keys in said
        for key, value in keys.items()
        if value is not False or key in one.format.followers or _at(one.data, _path(key)) is not NOTHING
    ]


def _says_precision(one: Standing) -> bool:
    precision = one.format.read(one.data, one.file).precision
    return precision is not None and precision.compute is not None


def _placed(key: str, value: Any, ranked: Sequence[Standing]) -> list[Setting]:
    held: list[Setting] = []
    free: list[Setting] = []
    for one in ranked:
        if value == "auto" and one.format.name != "deepspeed":
            continue  # others want the value itself
        options = [[Setting(standing=one, path=_path(k), value=v) for k, v in o.items()] for o in _own(key, value, one)]
        stated = next((option for option in options if any(_says(setting, ranked) for setting in option)), None)
        held += stated or []
        if stated is None and not free:
            free = next((option for option in options if all(map(_may_be_added, option))), free)
    # a model's own files count where no configuration says the same
    held = [one for one in held if not _of_model(one)] or held
    if held or free or key in REPEATS:
        return held or ([] if key in REPEATS else free)
    raise NoPlace(f"{key}: no file here takes it")


def _renamed(key: str, new: Renamed, there: Sequence[Standing]) -> Setting:
    """The key where the file of the finding has it. Raises NoPlace where it has the right one already."""
    path, right = _path(key), _path(new.renamed_to)
    one = next((one for one in there if _at(one.data, path) is not NOTHING), None)
    if one is None:
        raise NoPlace(f"{key}: no file here takes it")
    if path[:-1] != right[:-1] or _at(one.data, right) is not NOTHING:
        raise NoPlace(f"{key}: {new.renamed_to} is set already")
    return Setting(standing=one, path=path, value=new)


def _of_model(setting: Setting) -> bool:
    return setting.standing.format.precedence == OF_MODEL


def _says(setting: Setting, ranked: Sequence[Standing]) -> bool:
    """Whether the file says this key already; "auto" says that another file does."""
    old = _at(setting.standing.data, setting.path)
    return old is not NOTHING and (old != "auto" or setting.value == "auto" or len(ranked) == 1)


def _own(key: str, value: Any, one: Standing) -> Iterator[Mapping[str, Any]]:
    """The ways in which the format may say `key`, the usual one first."""
    said = one.format.spelled(key, value, one.data) if one.format.spelled else None
    if said is not None:
        yield said
        return
    names = [*one.format.spelling.get(key, ())]
    for table, usual in training_arguments.FORMAT.tables.items():
        own = one.format.tables.get(table, {})
        names += [name for field, keys in usual.items() if key in keys for name in own.get(field, ())]
    fields = fields_of(one.format.name)
    if fields is not None and (key in fields.names or key.partition(".")[0] in fields.names - fields.sections):
        names.append(key)
    for name in dict.fromkeys(names):
        yield {name: value}


def _may_be_added(setting: Setting) -> bool:
    """Not where a program would refuse a key that it does not know, and no section is begun for one key."""
    one, path = setting.standing, setting.path
    adds = one.format.adds
    old = _at(one.data, path)
    parent = _at(one.data, path[:-1]) if len(path) > 1 else one.data
    if not one.grows:
        return False
    opens = isinstance(parent, Mapping) or ".".join(path[:-1]) in one.format.opens
    return opens and old is NOTHING and setting.origin is not None and (adds is None or next(iter(path)) in adds)


def _is_so(one: Setting) -> bool:
    old = _at(one.standing.data, one.path)
    return old is not NOTHING and same(old, one.value)


def same(old: Any, new: Any) -> bool:
    """Whether a value in a file says what is meant; flags are text, and YAML reads 1e-5 as text."""
    if isinstance(new, bool):
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return old is new or (isinstance(old, str) and words.get(old.lower()) is new)
    if isinstance(new, int | float) and not isinstance(old, bool):
        try:
            return float(old) == new
        except (TypeError, ValueError, OverflowError):
            return False
    if isinstance(new, list) and isinstance(old, str):
        return [old] == new
    return old == new and isinstance(old, bool) == isinstance(new, bool)


def _at(data: Mapping[str, Any], path: Path) -> Any:
    *sections, key = path
    for name in sections:
        data = section(data, name)
    return data.get(key, NOTHING)


def _path(key: str) -> Path:
    return tuple(key.split("."))


def _flat(patch: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in patch.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
