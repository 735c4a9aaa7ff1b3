"""Where each setting of a run stands: the file whose word counts, and the line in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finitune.sources.configs import training_arguments
from finitune.sources.configs.composition import Origin
from finitune.sources.configs.format import Place
from finitune.sources.configs.runs import Named
from finitune.sources.configs.tables import leaves
from finitune.sources.editing.patching import MAX_CHARACTERS, TREES
from finitune.sources.editing.tree_text import lines
from finitune.sources.text import text_of


def of(run: Sequence[Named], files: Sequence[Named]) -> dict[str, dict[str, Place]]:
    """The line of each key, in the file that says it: what is typed for a program stands where it is started."""
    found: dict[str, dict[str, Place]] = {}
    for one in [*run, *files]:
        if one.format.places:
            found.setdefault(one.file, {}).update(one.format.places(one.data))
    for one in [*run, *files]:
        if one.format.stands:  # its values stand where they are gathered from
            found.setdefault(one.file, {})
        elif one.stands is not None:
            _place_gathered(one, one.stands, found)
        else:
            for key, place in _lines(one).items():
                found.setdefault(one.file, {}).setdefault(key, place)
    for one in files:
        for key in _typed_over(one):  # the command line says it, and the file no longer does
            found[one.file].pop(key, None)
        by = found.get(one.started.by) if one.started else None
        if by is not None and one.format.from_flags:
            for key, flag in one.format.from_flags(one.data).items():
                if (place := by.get(flag)) is not None:  # else a file that the launch names says it
                    by.setdefault(key, place)
    return found


def _typed_over(one: Named) -> set[str]:
    """The keys of a file that the flags of its launch win over, under their own names and the usual ones."""
    if one.flags is None or one.flags.file == one.file:
        return set()
    typed = {key for key, _ in leaves(one.flags.data)}
    for group, table in one.format.tables.items():
        for name, keys in table.items():
            if typed & set(keys):
                typed |= {*keys, *training_arguments.FORMAT.tables.get(group, {}).get(name, ())}
    return typed


def _lines(one: Named) -> dict[str, Place]:
    """The line of each key of a JSON or YAML file, and of the usual names of what its format keeps under its own."""
    found = _lines_in(Path(one.file))
    _with_usual(one, found)
    return {key: (None, line) for key, line in found.items()}


def _lines_in(path: Path) -> dict[str, int]:
    if path.suffix not in TREES or not path.is_file() or path.stat().st_size > MAX_CHARACTERS:
        return {}
    text = text_of(path, expected="a configuration")
    try:
        return lines(text, "json" if text.lstrip()[:1] in ("{", "[") else "yaml")
    except ValueError:
        return {}


def _with_usual(one: Named, found: dict[str, Any]) -> None:
    """The same places under the names that findings have for them."""
    for group, table in one.format.tables.items():
        for name, keys in table.items():
            said = [found[key] for key in keys if key in found][:1]
            for usual in training_arguments.FORMAT.tables.get(group, {}).get(name, ()) if said else ():
                found.setdefault(usual, said[0])
    for usual, keys in one.format.spelling.items():
        for key in keys:
            if key in found:
                found.setdefault(usual, found[key])


def _place_gathered(one: Named, stands: Mapping[tuple[str, ...], Origin], found: dict[str, dict[str, Place]]) -> None:
    """Of settings that were gathered from the files of a tree the line of each, in the file whose word counts."""
    known: dict[str, dict[str, int]] = {}
    places: dict[str, tuple[str, int]] = {}
    for keys, origin in stands.items():
        if origin.file not in known:
            known[origin.file] = _lines_in(Path(origin.file))
        if (line := known[origin.file].get(".".join(origin.path))) is not None:
            places[".".join(keys)] = (origin.file, line)
    _with_usual(one, places)
    for key, (file, line) in places.items():
        found.setdefault(file, {})[key] = (None, line)
