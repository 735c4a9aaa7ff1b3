"""A patch -> the new text of the files that it changes, read back before anybody writes it.

Model directories take part with their JSON files, for the few keys that belong there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from finitune.facts import Facts
from finitune.finding import NotChecked, Renamed, UnreadableInput
from finitune.sources.configs import composition, shell
from finitune.sources.configs.composition import Origin, leaves_of
from finitune.sources.configs.format import Format
from finitune.sources.configs.launches import Launch
from finitune.sources.configs.runs import Config, Named, runs_of, walk
from finitune.sources.configs.shell import SHELL
from finitune.sources.editing import shell_text, tree_text
from finitune.sources.editing.spelling import NOTHING, OF_MODEL, Kind, Setting, Standing, same, settled
from finitune.sources.text import config_of, json_object_of, settings_of, short, text_of

MODEL_FILES = {
    "tokenizer_config.json": ("padding_side", "pad_token", "add_bos_token"),
    "special_tokens_map.json": ("pad_token",),
    "config.json": ("tie_word_embeddings", "pad_token_id"),
    "generation_config.json": ("pad_token_id",),
}
"""The files of a model directory that a patch may change, and their keys."""

ALWAYS_HELD = {"tokenizer_config.json": {"padding_side", "pad_token", "add_bos_token"}}
"""Keys that are added where they are not; the other files only repeat what this one says."""


TREES = (".json", ".yaml", ".yml")
MAX_CHARACTERS = 2**16
"""Larger configurations are written by programs; finding a place in one takes time."""


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


def standings_each(configs: Sequence[Config], model: str | Path | None = None) -> list[list[Standing]]:
    """Of each run that the configurations start, every set of its settings that stands in a file.

    Raises UnreadableInput as the reading of configurations does.
    """
    of_model = list(_model_files(Path(model))) if model is not None else []
    return [[*_standings(run), *of_model] for run in runs_of(configs)]


def _standings(run: Sequence[Named]) -> Iterator[Standing]:
    for one in walk(run):
        if isinstance(one, NotChecked) or one.format.parse or not Path(one.file).is_file():
            continue
        if one.stands is not None:
            yield _gathered(one, one.stands)
            continue
        if one.under is None:
            if held := _as_written(one):
                yield dataclasses.replace(_standing(dataclasses.replace(one, data=held)), grows=one.format.declares)
            continue
        # a program refuses flags that it does not declare
        typed = {".".join(path) for path, _ in _leaves(one.flags.data)} if one.flags else set[str]()
        yield dataclasses.replace(_standing(one), grows=not one.silent, lost=typed)
        if one.flags is not None:
            # keys that are new go to the file, whose programs may not know them as flags
            yield dataclasses.replace(_standing(one.flags), grows=False)


def _gathered(one: Named, stands: Mapping[tuple[str, ...], Origin]) -> Standing:
    """Settings of a tree of files; what has no place in it is not said."""
    standing = Standing(file=one.file, kind="yaml", format=one.format, data=one.data, stands=stands)
    keys_of = one.format.precision_keys

    def precision_keys(dtype: str, data: Mapping[str, Any]) -> dict[str, Any] | None:
        said = dict(keys_of(dtype, data) or {}) if keys_of else {}
        settings = [Setting(standing=standing, path=tuple(key.split(".")), value=value) for key, value in said.items()]
        found = {".".join(each.path): each.value for each in settings if each.origin is not None}
        lost = [key for key, value in said.items() if value is not False and key not in found]
        half = lost and {"fp16", "bf16"} & data.keys()  # one switch cannot be put in the place of the other
        return None if half else found or None

    return dataclasses.replace(standing, format=dataclasses.replace(one.format, precision_keys=precision_keys))


def _as_written(one: Named) -> dict[str, Any]:
    """Of settings that stand nowhere as a whole the keys that do: as dotted flags of a script."""
    path = Path(one.file)
    leaves = list(_leaves(one.data))
    if _kind(path) == "shell":
        launches = _launches(path, raw_text(path))
        flags: Mapping[str, Any] = launches[one.launch].flags if len(launches) > one.launch else {}
        here = [leaf for leaf in leaves if len(leaf[0]) > 1 and ".".join(leaf[0]) in flags]
    else:
        here = []
    out: dict[str, Any] = {}
    for keys, value in here:
        out = _with(out, {keys: value})
    return out


def _leaves(data: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(cast("Mapping[str, Any]", value), (*above, key))
        else:
            yield (*above, key), value


def _standing(one: Named) -> Standing:
    return Standing(
        file=one.file, kind=_kind(Path(one.file)), format=one.format, data=one.data, under=one.under or (),
        launch=one.launch,
    )  # fmt: skip


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
            yield Standing(file=str(file), kind="json", format=_model_file(name, keys), data=data)


def _model_file(name: str, keys: Sequence[str]) -> Format:
    """A format of its own: these keys, and no others; its facts are the business of `weights` and `data`."""
    return Format(
        name=name, recognises=lambda _data: False, read=lambda _data, _file: Facts(), precedence=OF_MODEL,
        spelling={key: (key,) for key in keys}, adds=ALWAYS_HELD.get(name, set()),
    )  # fmt: skip


def taken(patch: Mapping[str, Any], runs: Sequence[Sequence[Standing]], first: str | None) -> Sequence[Setting] | None:
    """What the files of these runs are given by the patch, each key in its place; None where they cannot take it."""
    try:
        found = [setting for standings in runs for setting in settled(patch, standings, first)]
        return found if patched(found) else None
    except ValueError:
        return None


def patched(settings: Sequence[Setting]) -> list[Patched]:
    """The files with these settings, each read back. Raises UnreadableInput for one that cannot be changed safely."""
    files: dict[Path, list[Setting]] = {}
    for setting in settings:
        files.setdefault(Path(setting.file), []).append(setting)
    return [_patched(file, group) for file, group in files.items()]


def _patched(file: Path, settings: Sequence[Setting]) -> Patched:
    text = raw_text(file)
    kind = _kind(file) if settings[0].standing.stands is not None else settings[0].standing.kind
    if len(text) > MAX_CHARACTERS:
        raise UnreadableInput(f"{file}: {len(text)} characters (expected at most {MAX_CHARACTERS} to be patched here)")
    try:
        if kind == "shell":
            after = _script(file, text, settings)
        else:
            changes = {one.keys: one.value for one in settings}
            after = tree_text.edited(text, changes, kind)
            _compare(file, settings_of(file, text), settings_of(file, after), changes)
            for one in settings:  # what its own format refuses is not written
                if one.standing.stands is not None:
                    one.standing.format.read(_with(one.standing.data, {one.path: one.value}), str(file))
                    _compare_tree(Path(one.standing.file), file, after, settings)
                elif not one.standing.under:
                    one.standing.format.read(settings_of(file, after), str(file))
    except UnreadableInput:
        raise
    except Exception as error:
        raise UnreadableInput(f"{file}: cannot be patched here: {short(error)}; change it by hand") from None
    return Patched(file=file, before=text, after=after, changes=[_change(one) for one in settings])


def _compare_tree(root: Path, file: Path, after: str, settings: Sequence[Setting]) -> None:
    """The tree is as it was but for what was to change: a file may lie in several places of it."""

    def read(one: Path) -> str:
        return after if one.resolve() == file.resolve() else text_of(one, expected="a configuration")

    before, now = (
        composition.of_file(root, config_of(root)),
        composition.of_file(root, settings_of(root, read(root)), read),
    )
    old, new = dict(leaves_of(before.settings)), dict(leaves_of(now.settings))
    meant = {one.origin.whole for one in settings if one.origin is not None}
    others = {keys for keys in old.keys() | new.keys() if not _equal(old.get(keys), new.get(keys))} - meant
    if others:
        raise UnreadableInput(
            f"{file}: cannot be patched here: {'.'.join(min(others))} would change too; change it by hand"
        )


def _change(one: Setting) -> KeyChange:
    """Of a key that is renamed the change is that of the right one, which was not there."""
    before, after = (None, _old(one)) if isinstance(one.value, Renamed) else (_old(one), one.value)
    return KeyChange(file=one.file, key=one.key, before=before, after=after)


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
        if isinstance(value, Renamed) and not inner:
            out[value.renamed_to.rpartition(".")[2]] = out.pop(name)
            continue
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
    if "\r" in text:  # the whole script as Windows ends its lines, or nothing
        plain = text.replace("\r\n", "\n")
        if "\r" in plain or text != plain.replace("\n", "\r\n"):
            raise ValueError("only some of its lines end in a carriage return")
        return _script(file, plain, settings).replace("\n", "\r\n")
    beside = {one.path[0] for one in settings}
    first = _launches(file, text)
    for one in _in_order(settings):
        dotted = ".".join(one.path)
        if isinstance(one.value, Renamed):
            alike = {other.standing.launch for other in settings if (other.path, other.value) == (one.path, one.value)}
            text = _renamed(file, text, dotted, one.value.renamed_to, one.standing.launch, alike)
            continue
        flags = first[one.standing.launch].flags
        begun = any(flag.startswith(f"{one.path[0]}.") for flag in flags) and one.path[0] not in flags
        name, *inner = (dotted,) if dotted in flags or begun else one.path
        if inner and name in one.standing.data:
            raise ValueError(f"{name} holds no section")
        value = one.value
        for key in reversed(inner):
            value = {key: value}
        before, at = _launches(file, text), one.standing.launch
        if _is_meant(before[at], name, value) and not _is_meant(first[at], name, value):
            continue  # it has the flag from the same place as another launch
        alike = {other.standing.launch for other in settings if (other.path, other.value) == (one.path, one.value)}
        candidates = shell_text.edited(text, before[at].command, name, value, beside)
        done = next((new for new in candidates if _reads_as(file, new, before, name, value, at, alike)), None)
        if done is None:
            raise ValueError(f"no place in the script sets {name} for the launch in line {before[at].line} alone")
        text = done
    return text


def _renamed(file: Path, text: str, name: str, new: str, at: int, alike: Collection[int]) -> str:
    """The script with the flag spelt otherwise, in the launch `at` and in those whose flag stands in the same place."""
    before = _launches(file, text)
    if name not in before[at].flags:
        return text
    after = shell_text.renamed(text, before[at].command, name, new)
    for i, (old, one) in enumerate(zip(before, _launches(file, after), strict=True)):
        meant = {new if key == name and i in alike else key: value for key, value in old.flags.items()}
        if dataclasses.replace(one, flags=meant) != dataclasses.replace(old, flags=meant) or one.flags not in (
            [meant, old.flags] if i != at else [meant]
        ):
            raise ValueError(f"no place in the script holds {name} for the launch in line {before[at].line} alone")
    return after


def _in_order(settings: Sequence[Setting]) -> list[Setting]:
    """New flags first, while the flag beside which they stand is still there."""
    return sorted(settings, key=lambda one: one.path[0] in one.standing.data)


def _launches(file: Path, text: str) -> list[Launch]:
    found = shell.parse(text, str(file))
    if found is None:
        raise ValueError("it is no script any more")
    if len(found[SHELL]) > shell.MAX_LAUNCHES:
        raise ValueError(f"it has more than {shell.MAX_LAUNCHES} launches")
    return found[SHELL]


def _reads_as(
    file: Path, text: str, before: Sequence[Launch], name: str, value: Any, at: int, alike: Collection[int]
) -> bool:
    """Only this flag differs, in the launch `at`; those that are to be set `alike` may change with it."""
    try:
        after = _launches(file, text)
    except ValueError:
        return False
    if len(after) != len(before):
        return False
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        kept = i != at and dataclasses.replace(new, line=old.line) == old
        changed = i in alike and _differs_in(old, new, name) and _is_meant(new, name, value)
        if not (kept or changed):
            return False
    return True


def _differs_in(old: Launch, new: Launch, name: str) -> bool:
    """In this flag, and in nothing else."""
    group = _group(old, name)
    kept = {key: said for key, said in getattr(old, group).items() if key != name}
    others = {key: said for key, said in getattr(new, group).items() if key != name}
    rest = {f.name for f in dataclasses.fields(Launch) if f.compare} - {group, "line", "unknown"}
    same_rest = kept == others and all(getattr(old, key) == getattr(new, key) for key in rest)
    return same_rest and set(new.unknown) == set(old.unknown) - {name}


def _is_meant(launch: Launch, name: str, value: Any) -> bool:
    """Whether it says so; a switch that is not there says False."""
    said = getattr(launch, _group(launch, name)).get(name, NOTHING)
    return value is False and name not in launch.unknown if said is NOTHING else _says(said, value)


def _group(launch: Launch, name: str) -> str:
    return "launcher_flags" if name in launch.launcher_flags and name not in launch.flags else "flags"


def _says(said: Any, value: Any) -> bool:
    if isinstance(value, Mapping) and isinstance(said, str):
        try:
            return json.loads(said) == value
        except ValueError:
            return False
    return same(said, value)
