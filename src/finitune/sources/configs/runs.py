"""The runs that configurations start: their files, those that they name, and the flags laid over them."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finitune.finding import NotChecked, UnreadableInput
from finitune.sources.configs import hydra
from finitune.sources.configs.beside import beside
from finitune.sources.configs.composition import Origin
from finitune.sources.configs.format import Format, Settings, Started, format_of, formats
from finitune.sources.configs.interpolation import filled
from finitune.sources.configs.known_keys import fields_of
from finitune.sources.configs.tables import over
from finitune.sources.text import opened, settings_of, short, text_of

Config = str | Path | Settings
"""A file, or the settings themselves."""

MAX_FOLLOWED = 3
"""So far from a configuration are named ones looked for: names of names."""

TREES = {".json", ".yaml", ".yml"}
MAY_TRAIN = re.compile(
    r"TrainingArguments|\b[A-Z]\w+Config\b|\boptim\b|\.backward\(|\bTrainer\(|\bdeepspeed\.initialize|Adam"
)
"""A program without any of these words is not parsed."""

MAX_RUNS = 16
"""So many runs of one set of configurations are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One configuration of a run: what its file says, where, and what is laid over it."""

    format: Format
    data: Settings
    file: str
    under: tuple[str, ...] | None = ()
    """The keys of the file that lead to it, None when it stands nowhere."""
    launch: int = 0
    """Of the runs that the file starts, the one that it belongs to."""
    line: int | None = None
    """That of the launch, where there are several."""
    flags: Named | None = None
    """Those of the launch, which win over the file."""
    started: Started | None = None
    """Of a program: how it is started."""
    silent: bool = False
    """Flags that their program declares itself: it says what they mean, and here is only where they stand."""
    stands: Mapping[tuple[str, ...], Origin] | None = None
    """Of settings that were gathered from the files of a tree: where each stands."""

    @property
    def settings(self) -> Settings:
        """What counts in the run."""
        return over(self.data, self.flags.data) if self.flags else self.data


def runs_of(configs: Sequence[Config]) -> list[tuple[Named, ...]]:
    """The runs that the configurations start together; nearly always one.

    Raises UnreadableInput for what is given and cannot be read.
    """
    return list(itertools.islice(itertools.product(*map(_runs_of, configs)), MAX_RUNS))


def _runs_of(config: Config) -> list[Named]:
    data, file = loaded(config)
    kind = format_of(data)
    if kind is None:
        known = ", ".join(name.replace("_", " ") for name in formats())
        raise UnreadableInput(f"{file}: not a configuration that is known here (expected one of: {known})")
    several = kind.runs(data) if kind.runs else ()
    if len(several) < 2:
        return [Named(data=data, file=file, format=kind)]
    return [Named(data=one, file=file, format=kind, launch=i, line=line) for i, (line, one) in enumerate(several)]


def known_of(configs: Sequence[Config]) -> tuple[list[Config], list[NotChecked]]:
    """The configurations of a known format, and one entry for each other; of one alone it is wrong to say nothing.

    Raises UnreadableInput where none is known, and for what cannot be read.
    """
    unknown = [config for config in configs if format_of(loaded(config)[0]) is None]
    if len(unknown) == len(configs):
        return list(configs), []
    whys = [f"{loaded(config)[1]}: not a configuration that is known here" for config in unknown]
    left = [config for config in configs if all(config is not one for one in unknown)]
    return left, [NotChecked(input="config", why=why, given=True) for why in whys]


def walk(run: Sequence[Named]) -> Iterator[Named | NotChecked]:
    """The configurations of a run and those that they name, each file once; or why one that is named cannot be read.

    A program that is given beside the script that starts it is read as the script starts it, and so is a file whose
    settings the script types over.
    """
    begun = {how.file.resolve() for one in run if (how := _started(one))}
    begun |= {path.resolve() for one in run for path in _typed_over(one)}
    seen: set[Path] = {Path(one.file).resolve() for one in run} - begun
    for one in run:
        if Path(one.file).resolve() not in begun:
            yield from _with_named(one, seen, depth=0)


def _typed_over(one: Named) -> Iterator[Path]:
    """The files that a launch names and lays flags over."""
    if one.format.flags and one.format.flags(one.data):
        yield from (beside(one.file, named) for named in one.format.follows(one.data) if isinstance(named, str))


def _started(one: Named) -> Started | None:
    return one.format.starts(one.data, one.file) if one.format.starts else None


def _with_named(one: Named, seen: set[Path], *, depth: int) -> Iterator[Named | NotChecked]:
    yield one
    flags = one.format.flags(one.data) if one.format.flags else None
    inner: list[Named] = []
    for named in one.format.follows(one.settings) if depth < MAX_FOLLOWED else ():
        path = beside(one.file, named) if isinstance(named, str) else None
        if path is not None and not path.is_file():
            yield NotChecked(input="config", why=f"{one.file} names {named}, which is not here", given=True)
            continue
        if path is not None and path.resolve() in seen:
            continue
        seen |= {path.resolve()} if path else set()
        # settings that stand in place belong to the file they stand in
        data, file = loaded(path or named) if isinstance(named, str) else (named, one.file)
        kind = format_of(data)
        if kind is None:
            why = f"{one.file} names {file}, which is not a configuration that is known here"
            yield NotChecked(input="config", why=why, given=True)
        elif path is None:
            stands = one.format.stands(one.data, data, one.file) if one.format.stands else None
            under = None if stands is not None else _under(one, data)
            inner.append(dataclasses.replace(one, format=kind, data=data, under=under, flags=None, stands=stands))
        elif flags and kind.takes_flags:
            inner.append(Named(format=kind, data=data, file=file, flags=_known(one, flags[1], kind, data)))
            flags = None
        else:
            inner.append(Named(format=kind, data=data, file=file))
    program = _program(one, inner, seen)
    if flags:
        silent = program is not None and bool(program.format.own_flags and program.format.own_flags(program.data))
        # what dotted flags say is a tree, which has no place among the flags
        under = None if any(isinstance(value, dict) for value in flags[1].values()) else one.under
        inner.insert(0, dataclasses.replace(one, format=flags[0], data=flags[1], under=under, silent=silent))
    for found in [*inner, *([program] if program else [])]:
        yield from _with_named(found, seen, depth=depth + 1)
    if name := one.format.unread_program and one.format.unread_program(one.data, one.file):
        yield NotChecked(input="program", why=f"{one.file} starts {short(name)}, which is not here")


def _program(one: Named, files: Sequence[Named], seen: set[Path]) -> Named | None:
    """The program that a launch starts, as it is with its flags, and with the files of arguments that it is given."""
    how = _started(one)
    if how is None or how.file.resolve() in seen:
        return None
    data, file = loaded(how.file)
    kind = format_of(data)
    if kind is None or kind.started is None:
        return None
    seen.add(how.file.resolve())
    given: dict[str, object] = {}
    for each in files:
        given |= each.settings if each.format.takes_flags else {}
    how = dataclasses.replace(how, flags={**given, **how.flags})
    return Named(format=kind, data=kind.started(data, how), file=file, started=how)


def _known(launch: Named, flags: Settings, kind: Format, data: Settings) -> Named:
    """The flags of a launch that the format of the file that it names knows."""
    fields = fields_of(kind.name)
    own = {*data, *(fields.names if fields else ())}
    return dataclasses.replace(launch, format=kind, data={key: flags[key] for key in flags if key in own})


def _under(outer: Named, inner: Settings) -> tuple[str, ...] | None:
    """The flags of a script stand in the script itself; other settings under the key that holds them."""
    if outer.under is None or not outer.format.editable:
        return None
    if outer.format.parse:
        return ()
    key = next((key for key, value in outer.data.items() if value is inner), None)
    return None if key is None else (*outer.under, key)


def loaded(config: Config) -> tuple[Settings, str]:
    """The settings, by the first format that knows the text itself, else as JSON or YAML."""
    if isinstance(config, Mapping):
        return config, "the settings given"
    path = Path(config)
    text = text_of(path, expected="a configuration")
    for kind in formats().values():
        found = kind.parse(text, str(path)) if kind.parse else None
        if found is not None:
            return found, str(config)
    settings = settings_of(path, text)
    if "defaults" in settings:
        settings = hydra.composed(path, settings)
    return filled(settings) if "${" in text or "defaults" in settings else settings, str(config)


TOP_KEY = re.compile(r"^([A-Za-z_]\w*)\s*:(?=\s|$)|\"([A-Za-z_]\w*)\"\s*:", re.MULTILINE)
"""A key of YAML at the left edge, or one of JSON."""

TEMPLATE = re.compile(r"\{\{|\{%")
"""What another program fills in before anybody reads the file."""

ROUGHLY = 2**18
"""So many characters of a damaged file are looked at."""


def is_config(file: str | Path) -> bool:
    """True for a file that can be read as a configuration of a known format.

    Raises UnreadableInput for one that cannot be read and was to be one: by the keys of its text, or the words of its
    program.
    """
    try:
        return format_of(loaded(file)[0]) is not None
    except UnreadableInput:
        if _was_to_be(Path(file)):
            raise
        return False


def _was_to_be(file: Path) -> bool:
    """Whether a damaged file has the keys of a known format, or is a program that may train."""
    try:
        with opened(file, expected="a configuration") as damaged:
            text = damaged.read(ROUGHLY).decode(errors="replace")
    except (OSError, UnreadableInput):
        return False
    if file.suffix == ".py":
        return MAY_TRAIN.search(text) is not None
    if file.suffix not in TREES or TEMPLATE.search(text):
        return False
    keys = {found[1] or found[2] for found in TOP_KEY.finditer(text)}
    return format_of(dict.fromkeys(keys)) is not None
