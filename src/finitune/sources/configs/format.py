"""What a configuration format is: the record `FORMAT` that each file of `configs/` declares, found by its file name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from finitune.facts import Facts, Hardware
from finitune.sources import configs
from finitune.sources.configs.composition import Origin
from finitune.sources.result import Supervision

Settings = Mapping[str, Any]
"""Keys and values as a file has them."""

Place = tuple[int | None, int]
"""The cell of a notebook, None for other files, and the line in it, from 1."""

Keys = Mapping[str, Sequence[str]]
"""Field of a group of facts -> the keys that may hold it, the one that counts first. A dot leads into a section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A program, where it lies, and the flags that it is started with."""

    file: Path
    flags: Settings
    by: str
    """The file that starts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An accelerator as a script asks its scheduler for it, how many on each node, and the line."""

    name: str
    count: int | None
    line: int


def _no_settings(data: Settings) -> Iterable[str | Settings]:  # noqa: ARG001
    return ()


def _no_data(data: Settings) -> Iterable[str]:  # noqa: ARG001
    return ()


def _nothing(data: Settings, file: str) -> Iterable[str]:  # noqa: ARG001
    return ()


def _silent(data: Settings, file: str) -> Supervision:  # noqa: ARG001
    return Supervision()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Format:
    """One configuration format; its name is that of its file, and of its list of keys in `fields/`."""

    name: str
    recognises: Callable[[Settings], bool]
    read: Callable[[Settings, str], Facts]
    """The facts in the settings of a file. Raises UnreadableInput for a value of the wrong type."""

    parse: Callable[[str, str], Settings | None] | None = None
    """Settings from text that is neither JSON nor YAML, and its file; None for text that is not of this format."""
    runs: Callable[[Settings], Sequence[tuple[int, Settings]]] | None = None
    """The line and the settings of each run, where a file may start several."""
    follows: Callable[[Settings], Iterable[str | Settings]] = _no_settings
    """Other configurations that this one names, or that stand in it."""
    flags: Callable[[Settings], tuple[Format, Settings] | None] | None = None
    """Settings of its own that win over those of a file that it names, and their format where they stand alone."""
    of_flags: Callable[[Settings], Settings | None] | None = None
    """The settings in the flags of a launch; None where they are not of this format."""
    takes_flags: bool = False
    """Programs of this format take its settings as flags too, which win over the file."""
    starts: Callable[[Settings, str], Started | None] | None = None
    """The program that it starts, and what is typed after its name."""
    unread_program: Callable[[Settings, str], str | None] | None = None
    """The program that it starts, where that is not here."""
    started: Callable[[Settings, Started], Settings] | None = None
    """The settings of a program that is started so."""
    from_flags: Callable[[Settings], Mapping[str, str]] | None = None
    """The settings of a started program that its flags decide, each with its flag, "" where several may be meant."""
    own_flags: Callable[[Settings], bool] | None = None
    """Whether the program declares its flags itself, so that they mean what it makes of them and nothing else."""
    card: Callable[[Settings, str], Asked | None] | None = None
    """The card that it asks a scheduler for."""
    settled: Callable[[Facts, Settings, str, Hardware], Facts] | None = None
    """The facts, with what was left to the accelerator decided."""
    completed: Callable[[Facts, Settings, str, Hardware | None], Facts | str] | None = None
    """The facts, with what was left to the stored weights decided too; a line that says why it cannot be."""
    supervision: Callable[[Settings, str], Supervision] = _silent
    """How rows become labels."""
    data: Callable[[Settings], Iterable[str]] = _no_data
    """Files, folders and sets of data that it names."""
    left_out: Callable[[Settings, str], Iterable[str]] = _nothing
    """What could not be read, one line each."""
    title: Callable[[Settings], str] | None = None
    """What it configures, in a few words; None: the name of the format says it."""
    unused: Callable[[Settings], int] | None = None
    """How many of its keys say nothing here."""
    places: Callable[[Settings], Mapping[str, Place]] | None = None
    """Where each key stands, "" for the whole; None where nobody counted."""
    stands: Callable[[Settings, Settings, str], Mapping[tuple[str, ...], Origin]] | None = None
    """Of settings that were gathered from the tree of a file: where each stands."""
    parts: Callable[[Settings, str], Iterable[Path]] | None = None
    """Folders whose files are parts of this configuration, and none by themselves."""
    editable: bool = True
    """Patches can be written into its files."""
    undecided: Callable[[Settings, str], Iterable[str]] = _nothing
    """What the card of the run decides, one line each."""
    precedence: int = 0
    """Whose word counts where two configurations disagree: the higher one's."""
    open_ended: bool = False
    """Programs may add keys of their own."""

    tables: Mapping[str, Keys] = field(default_factory=dict[str, Keys])
    """Group of facts -> its table of keys: under which of its own names the format keeps each field."""
    spelling: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Own names of keys of a patch that no table has."""
    spelled: Callable[[str, Any, Settings], Settings | None] | None = None
    """Own keys and values for one key of a patch; None leaves it to the tables."""
    precision_keys: Callable[[str, Settings], Settings | None] | None = None
    """What to set so that the run computes in a dtype; None where it cannot be said."""
    adds: Collection[str] | None = None
    """The only keys that may be added to a file that does not have them yet; None: any that the format has."""
    declares: bool = False
    """Its programs take every key that a patch may add as a flag, so that a launch may be given it."""
    followers: Collection[str] = ()
    """Switches that follow another setting where they are absent, so that a False has to be written out."""
    opens: Collection[str] = ()
    """Sections that mean what they should with one key in them, and so may be begun for one."""


@cache
def formats() -> Mapping[str, Format]:
    """Every format, by name."""
    names = sorted(info.name for info in pkgutil.iter_modules(configs.__path__))
    modules = [importlib.import_module(f"{configs.__name__}.{name}") for name in names]
    found: list[Format] = [module.FORMAT for module in modules if hasattr(module, "FORMAT")]
    return {one.name: one for one in found}


def format_of(data: Settings) -> Format | None:
    """The format of these settings; None when none knows them."""
    return next((one for one in formats().values() if one.recognises(data)), None)
