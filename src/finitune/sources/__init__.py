"""Sources: the world -> Facts, one file per format.

A configuration format is one module here with `recognises(data) -> bool` and `read(data, file) -> Facts`; it is
found by its file name. It may also have
- `supervision(data, file)`: how rows become labels;
- `follows(data)`: other configurations that it names, or that stand in it; with `LENIENT` they may be absent;
- `PRECEDENCE`: whose word counts where two disagree; 0 unless given;
- `parse(text, file)`: settings from text that is neither JSON nor YAML, None for text that is not its own;
- `left_out(data, file)`: what could not be read, one line each;
- a list of its keys in `<format>_fields.txt`; with `OPEN_ENDED` programs may add keys of their own;
- what `spelling` names: how a patch is said in its words.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from finitune.facts import EmbeddingRows, Facts, TokenUse, Vocabulary
from finitune.finding import NotChecked, UnreadableInput
from finitune.sources import alone, checkpoint, dataset, environment, hardware, tokenizer
from finitune.sources.fields import unknown
from finitune.sources.reading import Reading, Supervision
from finitune.sources.text import settings_of, text_of
from finitune.sources.together import Configured, joined

Config = str | Path | Mapping[str, Any]
"""A file, or the settings themselves."""

MAX_FOLLOWED = 3
"""So far from a configuration are named ones looked for: names of names, and folders above."""

NAMED_ROWS = 64
"""So many of the shortest used embedding rows get the text of their token."""


@cache
def config_formats() -> tuple[ModuleType, ...]:
    """Every module of this folder that recognises a configuration."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return tuple(module for module in modules if hasattr(module, "recognises"))


def gather(
    *configs: Config,
    model: str | Path | None = None,
    data: str | Path | None = None,
    gpu: str | None = None,
    requirements: str | Path | None = None,
) -> Reading:
    """Facts from everything that is given, and one entry for every input that is not.

    Raises UnreadableInput for an input that is there and cannot be used.
    """
    configured = _read_all(configs)
    facts, settings = configured.facts, configured.supervision
    missing = [*configured.not_checked] if configs else [NotChecked(input="config", why="no configuration given")]
    compute = facts.precision.compute if facts.precision else None
    facts = Facts(
        hardware=hardware.read(gpu) if gpu else None,
        versions=environment.read(requirements) or None,
    ).over(facts)
    words, no_words = _tokenizer(model)
    if model is None:
        missing.append(NotChecked(input="model", why="no --model given"))
    else:
        weights = checkpoint.read(model, compute=compute)
        facts = Facts(
            vocabulary=_vocabulary(words, weights.facts.model.vocabulary if weights.facts.model else None)
        ).over(weights.facts.over(facts))
        missing += weights.not_checked
    if data is None:
        missing.append(NotChecked(input="data", why="no --data given"))
    else:
        facts, left_out = _with_data(facts, data, words, no_words, settings)
        missing += left_out
    outlying = facts.weights is not None and any(tensor.outlying for tensor in facts.weights.tensors)
    eager = facts.attention is not None and facts.attention.implementation == "eager"
    if model is not None and compute == "float16" and (outlying or eager):  # it reads the weights once more
        first, pad = alone.tokens_of(facts.tokens, facts.vocabulary, facts.batching, facts.optimizer)
        facts = dataclasses.replace(facts, activations=checkpoint.activations(model, first, pad))
    if not gpu:
        missing.append(NotChecked(input="gpu", why="no --gpu given"))
    return Reading(facts=facts, not_checked=missing)


def _tokenizer(model: str | Path | None) -> tuple[tokenizer.Tokenizer | None, str]:
    """The tokenizer of the model, or why there is none."""
    if model is None or not Path(model).exists():
        return None, "no tokenizer (give --model DIR)"
    try:
        return tokenizer.load(model), ""
    except tokenizer.NoTokenizer as error:
        return None, str(error)


def _vocabulary(words: tokenizer.Tokenizer | None, rows: int | None) -> Vocabulary | None:
    spare = words and tokenizer.spare_pad(words, rows)
    return None if words is None else Vocabulary(
        spare_pad={spare[0]: spare[1]} if spare else None,
        size=tokenizer.size(words), pad_id=words.pad_id, bos_id=words.bos_id, eos_id=words.eos_id, unk_id=words.unk_id,
        padding_side=words.padding_side, chat_template=words.chat_template is not None, source=words.source,
        template_markers=[text for text in words.special.values() if text in (words.chat_template or "")],
    )  # fmt: skip


def _with_data(
    facts: Facts, data: str | Path, words: tokenizer.Tokenizer | None, why: str, settings: Supervision
) -> tuple[Facts, Sequence[NotChecked]]:
    found = dataset.read(data, words, supervision=settings, why_no_tokenizer=why)
    tokens = found.facts.tokens
    if words and tokens and facts.rows:
        tokens = _with_short_rows_named(tokens, facts.rows, words)
    return Facts(tokens=tokens).over(found.facts).over(facts), found.not_checked


def _with_short_rows_named(tokens: TokenUse, rows: EmbeddingRows, words: tokenizer.Tokenizer) -> TokenUse:
    inside = tokens.ids[tokens.ids < len(rows.rms)]
    shortest = inside[np.argsort(rows.rms[inside], kind="stable")[:NAMED_ROWS]]
    return dataclasses.replace(tokens, names={**tokenizer.names(words, shortest), **tokens.names})


def _read_all(configs: Sequence[Config]) -> Configured:
    return joined([
        Configured(not_checked=[one]) if isinstance(one, NotChecked) else _read(one.module, one.data, one.file)
        for one in walk(configs)
    ])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One configuration of a run. `under` are the keys of its file that lead to it, None when it stands nowhere."""

    module: ModuleType
    data: Mapping[str, Any]
    file: str
    under: tuple[str, ...] | None = ()


def walk(configs: Sequence[Config]) -> Iterator[Named | NotChecked]:
    """The configurations and those that they name, each file once; or why one that is named cannot be read.

    Raises UnreadableInput for what is given and cannot be read.
    """
    seen: set[Path] = set()
    for config in configs:
        data, file = _loaded(config)
        module = format_of(data)
        if module is None:
            known = ", ".join(_name(m).replace("_", " ") for m in config_formats())
            raise UnreadableInput(f"{file}: not a configuration that is known here (expected one of: {known})")
        seen.add(Path(file).resolve())
        yield from _with_named(Named(module=module, data=data, file=file), seen, depth=0)


def _with_named(one: Named, seen: set[Path], *, depth: int) -> Iterator[Named | NotChecked]:
    yield one
    follows = getattr(one.module, "follows", None)
    for named in follows(one.data) if follows and depth < MAX_FOLLOWED else ():
        path = _beside(one.file, named) if isinstance(named, str) else None
        if path is not None and not path.is_file() and getattr(one.module, "LENIENT", False):
            yield NotChecked(input="config", why=f"{one.file} names {named}, which is not here")
            continue
        if path is not None and path.resolve() in seen:
            continue
        seen |= {path.resolve()} if path else set()
        # settings that stand in place belong to the file they stand in
        inner, file = (cast("Mapping[str, Any]", named), one.file) if path is None else _loaded(path)
        module = format_of(inner)
        if module is None:
            why = f"{one.file} names {file}, which is not a configuration that is known here"
            yield NotChecked(input="config", why=why)
            continue
        under = () if path else _under(one, inner)
        yield from _with_named(Named(module=module, data=inner, file=file, under=under), seen, depth=depth + 1)


def _under(outer: Named, inner: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The flags of a script stand in the script itself; other settings under the key that holds them."""
    if outer.under is None:
        return None
    if hasattr(outer.module, "parse"):
        return ()
    key = next((key for key, value in outer.data.items() if value is inner), None)
    return None if key is None else (*outer.under, key)


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


def _read(module: ModuleType, data: Mapping[str, Any], file: str) -> Configured:
    supervise = getattr(module, "supervision", None)
    left_out = getattr(module, "left_out", None)
    open_ended = getattr(module, "OPEN_ENDED", False)
    return Configured(
        precedence=getattr(module, "PRECEDENCE", 0),
        facts=module.read(data, file),
        supervision=supervise(data, file) if supervise else Supervision(),
        unknown_keys=list(unknown(_name(module), data, file, open_ended=open_ended)),
        not_checked=[NotChecked(input="config", why=why) for why in (left_out(data, file) if left_out else ())],
    )


def _name(module: ModuleType) -> str:
    return module.__name__.rsplit(".", 1)[-1]
