"""The files that Hydra lays over each other by their lists `defaults` -> the settings, and where each value stands.

By the rules of Hydra 1.1 and later: what comes later in a list wins, the file itself stands at `_self_`, else at the
end; a group lies under its own name, below that of the file that names it, unless `@package` or `group@package` says
otherwise; `override` chooses anew in a group that is named elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

from finitune.finding import UnreadableInput
from finitune.sources.text import settings_of, text_of

DEFAULTS = "defaults"
MAX_FILES = 100
MAX_DEPTH = 6
MAX_CHARACTERS = 2**17
"""Of all files of a tree together; those of people have a few thousand."""

_PACKAGE = re.compile(r"\s*#\s*@package:?\s+([\w.]+)")

Keys = tuple[str, ...]
Read = Callable[[Path], str]
"""The text of a file. Raises UnreadableInput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a value is written: the file, the keys in it that lead there, and those of the whole tree."""

    file: str
    path: Keys
    whole: Keys
    written: Any = None
    why_not: str = ""
    """Why it is not to be changed there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """The settings of a tree; `origins` has of each value the place whose word counts."""

    settings: dict[str, Any]
    missing: Sequence[str]
    """Files that are named and are not here."""
    origins: Mapping[Keys, Origin]
    groups: Sequence[Path]
    """Folders in which options may lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One entry of a list of defaults: a file, the file itself, or a choice anew."""

    group: str
    name: str
    package: str | None = None
    is_self: bool = False
    overrides: bool = False
    optional: bool = False


def of_file(path: Path, data: Mapping[str, Any], read: Read | None = None) -> Composed:
    """What `data`, the settings of `path`, are together with the files of its defaults.

    Raises UnreadableInput for a file that is there and damaged.
    """
    work = _Composing(root=path, read=read or (lambda file: text_of(file, expected="a configuration")))
    work.choose(path, data, "", 0)
    work.seen, work.missing = 0, []
    settings: dict[str, Any] = {}
    origins: dict[Keys, Origin] = {}
    for package, content, file in work.parts(path, data, "", (), 0):
        _lay(settings, _under(package, content))
        for keys, value in leaves_of(content):
            whole = (*package, *keys)
            origins[whole] = Origin(file=str(file), path=keys, whole=whole, written=value)
    return Composed(
        settings=settings, missing=tuple(dict.fromkeys(work.missing)), origins=origins,
        groups=[folder / group for group in sorted(work.named) if group for folder in work.folders],
    )  # fmt: skip


@dataclass(slots=True)
class _Composing:
    """One composition; its lifetime is that of the choices that are known and the files that are left to read."""

    root: Path
    read: Read
    chosen: dict[str, str] = field(default_factory=dict[str, str])
    named: set[str] = field(default_factory=set[str])
    missing: list[str] = field(default_factory=list[str])
    texts: dict[Path, str] = field(default_factory=dict[Path, str])
    held: dict[Path, dict[str, Any]] = field(default_factory=dict[Path, "dict[str, Any]"])
    seen: int = 0

    @property
    def folders(self) -> Sequence[Path]:
        """Those in which groups lie."""
        return self.root.parent, self.root.parent.parent

    def choose(self, path: Path, data: Mapping[str, Any], group: str, depth: int) -> None:
        """What every `override` of the tree chooses; the outermost counts, and of several in a list the last."""
        entries = list(_entries(data, group))
        for chosen, name in {one.group: one.name for one in entries if one.overrides}.items():
            self.chosen.setdefault(chosen, name)
        self.named |= {one.group for one in entries if not one.overrides and not one.is_self}
        for one in entries:
            if not one.is_self and not one.overrides and (found := self.file_of(one, path, depth)) is not None:
                self.choose(found[0], found[1], one.group, depth + 1)

    def parts(
        self, path: Path, data: Mapping[str, Any], group: str, package: Keys, depth: int
    ) -> Iterator[tuple[Keys, Mapping[str, Any], Path]]:
        """Each file with the keys that it lies under, in the order in which they are laid over each other."""
        content = {key: value for key, value in data.items() if key != DEFAULTS}
        entries = list(_entries(data, group))
        if not any(one.is_self for one in entries):
            entries.append(_Entry(group="", name="", is_self=True))
        for one in entries:
            if one.is_self:
                yield package, content, path
                continue
            if one.overrides and one.group in self.named:
                continue  # where the group is named the choice counts
            found = self.file_of(one, path, depth)
            if found is None:
                continue
            file, inner, head = found
            yield from self.parts(file, inner, one.group, _package(one, group, package, head), depth + 1)

    def file_of(self, one: _Entry, by: Path, depth: int) -> tuple[Path, dict[str, Any], str | None] | None:
        """The file of an entry with its settings and the package in its head; None where it is not here."""
        name = self.chosen.get(one.group, one.name) if one.group and not one.overrides else one.name
        if not name:
            return None
        relative = PurePosixPath(one.group) / f"{str(name).removesuffix('.yaml')}.yaml"
        if ".." in relative.parts or relative.is_absolute() or depth > MAX_DEPTH:
            return None
        self.seen += 1
        if self.seen > MAX_FILES:
            raise UnreadableInput(f"{self.root}: its defaults name more than {MAX_FILES} files")
        file = next((folder / relative for folder in self.folders if (folder / relative).is_file()), None)
        if file is None:
            self.missing += [] if one.optional else [str(relative)]
            return None
        if file.resolve() == by.resolve():
            return None
        if file not in self.texts:
            text = self.read(file)
            if sum(map(len, self.texts.values())) + len(text) > MAX_CHARACTERS:
                raise UnreadableInput(f"{file}: beyond {MAX_CHARACTERS} characters in the files that {self.root} names")
            self.texts[file], self.held[file] = text, settings_of(file, text)
        head = _PACKAGE.match(self.texts[file])
        return file, self.held[file], head[1] if head else None


def _entries(data: Mapping[str, Any], group: str) -> Iterator[_Entry]:
    """The entries of a list of defaults that name files; groups are relative to that of the file, or begin with /."""
    held: Any = data.get(DEFAULTS)
    for one in cast(list[Any], held)[:MAX_FILES] if isinstance(held, list) else ():
        if one == "_self_":
            yield _Entry(group=group, name="", is_self=True)
        elif isinstance(one, str):
            place, _, package = one.partition("@")
            inner, _, name = place.rpartition("/")
            yield from _named(inner if not place.startswith("/") else f"/{inner.lstrip('/')}", [name], package, group)
        elif isinstance(one, Mapping) and len(cast("Mapping[Any, Any]", one)) == 1:
            ((key, option),) = cast("Mapping[Any, Any]", one).items()
            *words, place = str(key).split()
            inner, _, package = place.partition("@")
            options: list[Any] = cast(list[Any], option) if isinstance(option, list) else [option]
            said = {"overrides": "override" in words, "optional": "optional" in words}
            yield from _named(inner, options, package, group, **said)


def _named(
    inner: str, options: Sequence[Any], package: str, group: str, *, overrides: bool = False, optional: bool = False
) -> Iterator[_Entry]:
    whole = inner.lstrip("/") if inner.startswith("/") or overrides else "/".join(filter(None, (group, inner)))
    if whole.split("/")[0] == "hydra":
        return
    for option in options:
        if option is None or option == "???":  # chosen elsewhere
            yield _Entry(group=whole, name="")
        elif isinstance(option, str) and "${" not in option:
            yield _Entry(group=whole, name=option, package=package or None, overrides=overrides, optional=optional)


def _package(one: _Entry, group: str, above: Keys, head: str | None) -> Keys:
    """The keys under which the file of an entry lies. `group`: that of the file that names it."""
    own = one.group.removeprefix(f"{group}/") if group and one.group != group else one.group if not group else ""
    said = one.package or (f"_global_.{head}" if head else own.replace("/", "."))
    said = said.replace("_group_", one.group.replace("/", ".")).replace("_name_", one.name)
    parts = [part for part in said.split(".") if part and part != "_here_"]
    if "_global_" in parts:
        last = len(parts) - 1 - parts[::-1].index("_global_")
        return tuple(parts[last + 1 :])
    return (*above, *parts)


def _under(package: Keys, content: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in reversed(package):
        content = {key: content}
    return content


def _lay(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        held = into.get(key)
        if isinstance(value, Mapping):
            if not isinstance(held, dict):
                held = into[key] = {}
            _lay(cast(dict[str, Any], held), cast("Mapping[str, Any]", value))
        else:
            into[key] = value


def leaves_of(data: Mapping[str, Any], above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Every value that is no mapping, with the keys that lead to it."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from leaves_of(cast("Mapping[str, Any]", value), (*above, str(key)))
        else:
            yield (*above, str(key)), value
