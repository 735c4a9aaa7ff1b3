"""Sources: the world -> Facts, one file per format.

A configuration format is one module here with `recognises(data) -> bool` and `read(data, file) -> Facts`; it is
found by its file name. It may also have
- `supervision(data, file)`: how rows become labels;
- `follows(data)`: other configurations that it names, or that stand in it; with `LENIENT` they may be absent;
- `runs(data)`: the line and the settings of each run, where it starts several;
- `overrides(data)`: settings of its own, laid over those of a file that it names if that file's format has `FLAGS`;
- `settled(facts, data, file, card)`: the facts, with what was left to the accelerator decided;
- `PRECEDENCE`: whose word counts where two disagree; 0 unless given;
- `parse(text, file)`: settings from text that is neither JSON nor YAML, None for text that is not its own;
- `left_out(data, file)`: what could not be read, one line each;
- a list of its keys in `<format>_fields.txt`; with `OPEN_ENDED` programs may add keys of their own.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from finitune.facts import EmbeddingRows, Facts, Hardware, TokenUse, Vocabulary
from finitune.finding import NotChecked, UnreadableInput
from finitune.sources import checkpoint, dataset, environment, hardware, tokenizer
from finitune.sources.fields import fields_of, unknown
from finitune.sources.reading import Reading, Supervision, Track, untracked
from finitune.sources.text import settings_of, text_of
from finitune.sources.together import Configured, joined

Config = str | Path | Mapping[str, Any]
"""A file, or the settings themselves."""

MAX_FOLLOWED = 3
"""So far from a configuration are named ones looked for: names of names, and folders above."""

MAX_RUNS = 16
"""So many runs of one set of configurations are looked at."""

NAMED_ROWS = 64
"""So many of the shortest used embedding rows get the text of their token."""


@cache
def config_formats() -> tuple[ModuleType, ...]:
    """Every module of this folder that recognises a configuration."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return tuple(module for module in modules if hasattr(module, "recognises"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Settings that are loaded, the file they are from, and the line of their run where a file starts several."""

    data: Mapping[str, Any]
    file: str
    module: ModuleType
    line: int | None = None


def gather(*configs: Config, **inputs: Any) -> Reading:
    """Facts from everything that is given, as for `gather_each`; of several runs those of the first."""
    return next(gather_each(*configs, **inputs))[1]


def gather_each(
    *configs: Config,
    model: str | Path | None = None,
    data: str | Path | None = None,
    gpu: str | None = None,
    requirements: str | Path | None = None,
    track: Track = untracked,
) -> Iterator[tuple[Sequence[int], Reading]]:
    """One reading for each run that the configurations start, and the lines of its launch where there are several.

    A reading is facts from everything that is given, and one entry for every input that is not. Weights and data are
    read once for all runs that would read them alike. Raises UnreadableInput for an input that cannot be used.
    """
    runs = list(itertools.islice(itertools.product(*map(_runs_of, configs)), MAX_RUNS))
    card = hardware.read(gpu) if gpu else None
    around = Facts(hardware=card, versions=environment.read(requirements) or None)
    words, no_words = _tokenizer(model)

    @cache
    def weights(compute: str | None) -> Reading:
        if model is None:
            return Reading(not_checked=[NotChecked(input="model", why="no --model given")])
        return checkpoint.read(model, compute=compute, track=track)

    @cache
    def rows(settings: Supervision) -> Reading:
        if data is None:
            return Reading(not_checked=[NotChecked(input="data", why="no --data given")])
        return dataset.read(data, words, supervision=settings, why_no_tokenizer=no_words, track=track)

    for run in runs:
        seen: set[Path] = {Path(given.file).resolve() for given in run}
        configured = joined([one for given in run for one in _with_named(given, seen, card)])
        facts = around.over(configured.facts)
        stored = weights(facts.precision.compute if facts.precision else None)
        facts = Facts(vocabulary=_vocabulary(words)).over(stored.facts.over(facts))
        used = rows(configured.supervision)
        missing = [
            *(configured.not_checked if configs else [NotChecked(input="config", why="no configuration given")]),
            *stored.not_checked,
            *used.not_checked,
            *([] if gpu else [NotChecked(input="gpu", why="no --gpu given")]),
        ]
        reading = Reading(facts=_with_data(facts, used.facts, words), not_checked=missing)
        yield [given.line for given in run if given.line is not None], reading


def _tokenizer(model: str | Path | None) -> tuple[tokenizer.Tokenizer | None, str]:
    """The tokenizer of the model, or why there is none."""
    if model is None or not Path(model).exists():
        return None, "no tokenizer (give --model DIR)"
    try:
        return tokenizer.load(model), ""
    except tokenizer.NoTokenizer as error:
        return None, str(error)


def _vocabulary(words: tokenizer.Tokenizer | None) -> Vocabulary | None:
    return None if words is None else Vocabulary(
        size=tokenizer.size(words), pad_id=words.pad_id, bos_id=words.bos_id, eos_id=words.eos_id, unk_id=words.unk_id,
        padding_side=words.padding_side, chat_template=words.chat_template is not None, source=words.source,
    )  # fmt: skip


def _with_data(facts: Facts, found: Facts, words: tokenizer.Tokenizer | None) -> Facts:
    tokens = found.tokens
    if words and tokens and facts.rows:
        tokens = _with_short_rows_named(tokens, facts.rows, words)
    return Facts(tokens=tokens).over(found).over(facts)


def _with_short_rows_named(tokens: TokenUse, rows: EmbeddingRows, words: tokenizer.Tokenizer) -> TokenUse:
    inside = tokens.ids[tokens.ids < len(rows.rms)]
    shortest = inside[np.argsort(rows.rms[inside], kind="stable")[:NAMED_ROWS]]
    return dataclasses.replace(tokens, names={**tokenizer.names(words, shortest), **tokens.names})


def _runs_of(config: Config) -> list[Given]:
    """The runs that a configuration starts; nearly always one."""
    data, file = _loaded(config)
    module = format_of(data)
    if module is None:
        known = ", ".join(_name(m).replace("_", " ") for m in config_formats())
        raise UnreadableInput(f"{file}: not a configuration that is known here (expected one of: {known})")
    runs = getattr(module, "runs", None)
    several = list(runs(data)) if runs else []
    if len(several) < 2:
        return [Given(data=data, file=file, module=module)]
    return [Given(data=one, file=file, module=module, line=line) for line, one in several]


def _with_named(given: Given, seen: set[Path], card: Hardware | None, *, depth: int = 0) -> Iterator[Configured]:
    """A configuration and those that it names; each file is read once."""
    yield _read(given, card)
    module, file = given.module, given.file
    follows, overrides = getattr(module, "follows", None), getattr(module, "overrides", None)
    over: Mapping[str, Any] = overrides(given.data) if overrides else {}
    inner: list[Given] = []
    for named in follows(given.data) if follows and depth < MAX_FOLLOWED else ():
        path = _beside(file, named) if isinstance(named, str) else None
        if path is not None and not path.is_file() and getattr(module, "LENIENT", False):
            yield Configured(not_checked=[NotChecked(input="config", why=f"{file} names {named}, which is not here")])
            continue
        if path is not None and path.resolve() in seen:
            continue
        seen |= {path.resolve()} if path else set()
        # settings that stand in place belong to the file they stand in
        data, source = (cast("Mapping[str, Any]", named), file) if path is None else _loaded(path)
        known = format_of(data)
        if known is None:
            why = f"{file} names {source}, which is not a configuration that is known here"
            yield Configured(not_checked=[NotChecked(input="config", why=why)])
        elif over and path is not None and getattr(known, "FLAGS", False):
            fields = fields_of(_name(known))
            own = {*data, *(fields.names if fields else ())}
            inner.append(Given(data={**data, **{k: v for k, v in over.items() if k in own}}, file=source, module=known))
            over = {}
        else:
            inner.append(Given(data=data, file=source, module=known))
    if over and (known := format_of(over)):
        inner.insert(0, Given(data=over, file=file, module=known))
    for one in inner:
        yield from _with_named(one, seen, card, depth=depth + 1)


def _beside(file: str, named: str) -> Path:
    """Where a named file is: from the working directory, or beside the file that names it or a few folders above."""
    folder = Path(file).resolve().parent
    places = [Path(named), *(above / named for above in [folder, *folder.parents][: MAX_FOLLOWED + 1])]
    return next((place for place in places if place.is_file()), Path(file).parent / named)


def _loaded(config: Config) -> tuple[Mapping[str, Any], str]:
    """The settings, by the first format that knows the text itself, else as JSON or YAML."""
    if isinstance(config, Mapping):
        return config, "the settings given"
    path = Path(config)
    text = text_of(path, expected="a configuration")
    for module in config_formats():
        parse = getattr(module, "parse", None)
        found = parse(text, str(path)) if parse else None
        if found is not None:
            return found, str(config)
    return settings_of(path, text), str(config)


def format_of(data: Mapping[str, Any]) -> ModuleType | None:
    """The format of these settings; None when none knows them."""
    return next((module for module in config_formats() if module.recognises(data)), None)


def is_config(file: str | Path) -> bool:
    """True for a file that can be read as a configuration of a known format."""
    try:
        return format_of(_loaded(file)[0]) is not None
    except UnreadableInput:
        return False


def _read(given: Given, card: Hardware | None) -> Configured:
    module, data, file = given.module, given.data, given.file
    supervise, settled = getattr(module, "supervision", None), getattr(module, "settled", None)
    left_out = getattr(module, "left_out", None)
    open_ended = getattr(module, "OPEN_ENDED", False)
    facts = module.read(data, file)
    return Configured(
        precedence=getattr(module, "PRECEDENCE", 0),
        facts=settled(facts, data, file, card) if settled and card else facts,
        supervision=supervise(data, file) if supervise else Supervision(),
        unknown_keys=list(unknown(_name(module), data, file, open_ended=open_ended)),
        not_checked=[NotChecked(input="config", why=why) for why in (left_out(data, file) if left_out else ())],
    )


def _name(module: ModuleType) -> str:
    return module.__name__.rsplit(".", 1)[-1]
