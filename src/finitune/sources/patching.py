"""A patch -> the new text of the files that it changes, read back before anybody writes it.

Model directories take part with their JSON files, for the few keys that belong there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from finitune.finding import UnreadableInput
from finitune.sources import Config, Named, json_text, shell, shell_text, walk, yaml_text
from finitune.sources.shell import SHELL, Launch
from finitune.sources.spelling import NOTHING, OF_MODEL, Kind, Setting, Standing, same, settled
from finitune.sources.text import json_object_of, settings_of, short, text_of

MODEL_FILES = {
    "tokenizer_config.json": ("padding_side", "pad_token", "add_bos_token"),
    "special_tokens_map.json": ("pad_token",),
    "config.json": ("tie_word_embeddings", "pad_token_id"),
    "generation_config.json": ("pad_token_id",),
}
"""The files of a model directory that a patch may change, and their keys."""

ALWAYS_HELD = {"tokenizer_config.json": {"padding_side", "pad_token", "add_bos_token"}}
"""Keys that are added where they are not; the other files only repeat what this one says."""


MAX_CHARACTERS = 2**16
"""Larger configurations are written by programs; finding a place in one takes time."""

MAX_PLACES = 8
"""So many places of a script are tried for one flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """One key with its value before (None where it was not there) and after."""

    file: str
    key: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Patched:
    """One file before and after. The texts are without a byte-order mark, which stays where it was."""

    file: Path
    before: str
    after: str
    changes: Sequence[KeyChange]


def standings(configs: Sequence[Config], model: str | Path | None = None) -> list[Standing]:
    """Every set of settings of a run that stands in a file.

    Raises UnreadableInput as the reading of configurations does.
    """
    found: list[Standing] = []
    for one in walk(configs):
        if isinstance(one, Named) and one.under is not None and SHELL not in one.data and Path(one.file).is_file():
            kind = _kind(Path(one.file))
            found.append(Standing(file=one.file, kind=kind, module=one.module, data=one.data, under=one.under))
    return found + (list(_model_files(Path(model))) if model is not None else [])


def _kind(path: Path) -> Kind:
    text = text_of(path, expected="a configuration")
    if shell.is_script(text, str(path)):
        return "shell"
    return "json" if text.lstrip()[:1] in ("{", "[") else "yaml"


def _model_files(directory: Path) -> Iterator[Standing]:
    for name, keys in MODEL_FILES.items():
        file = directory / name
        try:
            data = json_object_of(file) if file.is_file() else None
        except UnreadableInput:  # whoever needs the file says so; here it only takes no patch
            data = None
        if data is not None:
            yield Standing(file=str(file), kind="json", module=_model_file(name, keys), data=data)


def _model_file(name: str, keys: Sequence[str]) -> SimpleNamespace:
    """A format of its own as far as `spelling` asks: these keys, and no others."""
    spelling = {key: (key,) for key in keys}
    return SimpleNamespace(__name__=name, SPELLING=spelling, ADDS=ALWAYS_HELD.get(name, set()), PRECEDENCE=OF_MODEL)


def takes(patch: Mapping[str, Any], found: Sequence[Standing], first: str | None) -> bool:
    """Whether these files can be given the patch, each key in its place."""
    try:
        return bool(patched(settled(patch, found, first)))
    except ValueError:
        return False


def patched(settings: Sequence[Setting]) -> list[Patched]:
    """The files with these settings, each read back. Raises UnreadableInput for one that cannot be changed safely."""
    files: dict[Path, list[Setting]] = {}
    for setting in settings:
        files.setdefault(Path(setting.standing.file), []).append(setting)
    return [_patched(file, group) for file, group in files.items()]


def _patched(file: Path, settings: Sequence[Setting]) -> Patched:
    text = raw_text(file)
    kind = settings[0].standing.kind
    if len(text) > MAX_CHARACTERS:
        raise UnreadableInput(f"{file}: {len(text)} characters (expected at most {MAX_CHARACTERS} to be patched here)")
    try:
        if kind == "shell":
            after = _script(file, text, settings)
        else:
            changes = {(*one.standing.under, *one.path): one.value for one in settings}
            after = (json_text if kind == "json" else yaml_text).edited(text, changes)
            _compare(file, settings_of(file, text), settings_of(file, after), changes)
    except UnreadableInput:
        raise
    except Exception as error:
        raise UnreadableInput(f"{file}: cannot be patched here: {short(error)}; change it by hand") from None
    changed = [KeyChange(file=str(file), key=one.key, before=_old(one), after=one.value) for one in settings]
    return Patched(file=file, before=text, after=after, changes=changed)


def raw_text(file: Path) -> str:
    """The text as it is, line ends and all, without a byte-order mark."""
    text_of(file, expected="a configuration")
    return file.read_bytes().decode("utf-8").removeprefix("\ufeff")


def _old(one: Setting) -> Any:
    data: Any = one.standing.data
    for key in one.path:
        data = cast(Mapping[str, Any], data).get(key, NOTHING) if isinstance(data, Mapping) else NOTHING
    return None if data is NOTHING else data


def _compare(file: Path, before: Any, after: Any, changes: Mapping[tuple[str, ...], Any]) -> None:
    """Everything as it was but for the keys that were to change, which say what they should."""
    expected = _with(before, changes)
    if not _equal(expected, after):
        raise UnreadableInput(f"{file}: cannot be patched here: it does not read back as meant; change it by hand")


def _with(data: Any, changes: Mapping[tuple[str, ...], Any]) -> Any:
    out: dict[str, Any] = dict(data)
    for (name, *inner), value in changes.items():
        held = out.get(name)
        out[name] = _with(held if isinstance(held, Mapping) else {}, {tuple(inner): value}) if inner else value
    return out


def _equal(one: Any, other: Any) -> bool:
    """Equal in value and in type, which == is not: 1 is no True, and NaN is itself here."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        first, second = cast("Mapping[Any, Any]", one), cast("Mapping[Any, Any]", other)
        return first.keys() == second.keys() and all(_equal(first[key], second[key]) for key in first)
    if isinstance(one, list) and isinstance(other, list):
        pairs = cast("list[Any]", one), cast("list[Any]", other)
        return len(pairs[0]) == len(pairs[1]) and all(map(_equal, *pairs))
    single = cast(Any, one)
    return type(single) is type(other) and (single == other or single != single)


def _script(file: Path, text: str, settings: Sequence[Setting]) -> str:
    if "\r" in text:
        raise ValueError("its lines end in a carriage return")
    beside = {one.path[0] for one in settings}
    for one in _in_order(settings):
        name, *inner = one.path
        if inner and name in one.standing.data:
            raise ValueError(f"{name} holds no section")
        value = one.value
        for key in reversed(inner):
            value = {key: value}
        before = _launches(file, text)
        candidates = islice(shell_text.edited(text, before[0].line, name, value, beside), MAX_PLACES)
        done = next((new for new in candidates if _reads_as(file, new, before, name, value)), None)
        if done is None:
            raise ValueError(f"no place in the script sets {name} alone")
        text = done
    return text


def _in_order(settings: Sequence[Setting]) -> list[Setting]:
    """New flags first, while the flag beside which they stand is still there."""
    return sorted(settings, key=lambda one: one.path[0] in one.standing.data)


def _launches(file: Path, text: str) -> list[Launch]:
    found = shell.parse(text, str(file))
    if found is None:
        raise ValueError("it is no script any more")
    return found[SHELL]


def _reads_as(file: Path, text: str, before: Sequence[Launch], name: str, value: Any) -> bool:
    try:
        after = _launches(file, text)
    except ValueError:
        return False
    if len(after) != len(before):
        return False
    for old, new in zip(before, after, strict=True):
        if not _launch_reads_as(old, new, name, value, first=old is before[0]):
            return False
    return True


def _launch_reads_as(old: Launch, new: Launch, name: str, value: Any, *, first: bool) -> bool:
    """Only this flag differs; a second launch that shares a variable may change with it or stay."""
    group = "launcher_flags" if name in old.launcher_flags and name not in old.flags else "flags"
    flags: Mapping[str, Any] = getattr(new, group)
    kept = {key: said for key, said in getattr(old, group).items() if key != name}
    others = {key: said for key, said in flags.items() if key != name}
    rest = {f.name for f in dataclasses.fields(Launch)} - {group, "line", "unknown"}
    if kept != others or any(getattr(old, key) != getattr(new, key) for key in rest):
        return False
    if set(new.unknown) != set(old.unknown) - {name}:
        return False
    said = flags.get(name, NOTHING)
    as_meant = (said is NOTHING and value is False) or (said is not NOTHING and _says(said, value))
    return as_meant if first else as_meant or said == getattr(old, group).get(name, NOTHING)


def _says(said: Any, value: Any) -> bool:
    if isinstance(value, Mapping) and isinstance(said, str):
        try:
            return json.loads(said) == value
        except ValueError:
            return False
    return same(said, value)
