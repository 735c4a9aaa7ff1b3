"""Sources: the world -> Facts, one file per format.

A configuration format is one module here with `recognises(data) -> bool` and `read(data, file) -> Facts`; it is
found by its file name. It may also have `supervision(data, file)` (how rows become labels), `follows(data)` (other
configurations that it names) and `PRECEDENCE` (whose word counts where two disagree; 0 unless given).
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from finitune.facts import EmbeddingRows, Facts, Precision, TokenUse
from finitune.finding import NotChecked, UnreadableInput
from finitune.sources import checkpoint, dataset, environment, hardware, tokenizer
from finitune.sources.reading import Reading, Supervision
from finitune.sources.text import config_of

Config = str | Path | Mapping[str, Any]
"""A file, or the settings themselves."""

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
    facts, settings = _configured(configs)
    missing: list[NotChecked] = [] if configs else [NotChecked(input="config", why="no configuration given")]
    compute = facts.precision.compute if facts.precision else None
    facts = Facts(
        hardware=hardware.read(gpu) if gpu else None,
        versions=environment.read(requirements) or None,
    ).over(facts)
    if model is None:
        missing.append(NotChecked(input="model", why="no --model given"))
    else:
        weights = checkpoint.read(model, compute=compute)
        facts = weights.facts.over(facts)
        missing += weights.not_checked
    if data is None:
        missing.append(NotChecked(input="data", why="no --data given"))
    else:
        facts, left_out = _with_data(facts, data, model, settings)
        missing += left_out
    if not gpu:
        missing.append(NotChecked(input="gpu", why="no --gpu given"))
    return Reading(facts=facts, not_checked=missing)


def _with_data(
    facts: Facts, data: str | Path, model: str | Path | None, settings: Supervision
) -> tuple[Facts, Sequence[NotChecked]]:
    words: tokenizer.Tokenizer | None = None
    why = "no tokenizer (give --model DIR)"
    if model is not None:
        try:
            words = tokenizer.load(model)
        except tokenizer.NoTokenizer as error:
            why = str(error)
    found = dataset.read(data, words, supervision=settings, why_no_tokenizer=why)
    tokens = found.facts.tokens
    if words and tokens and facts.rows:
        tokens = _with_short_rows_named(tokens, facts.rows, words)
    return Facts(tokens=tokens).over(found.facts).over(facts), found.not_checked


def _with_short_rows_named(tokens: TokenUse, rows: EmbeddingRows, words: tokenizer.Tokenizer) -> TokenUse:
    inside = tokens.ids[tokens.ids < len(rows.rms)]
    shortest = inside[np.argsort(rows.rms[inside], kind="stable")[:NAMED_ROWS]]
    return dataclasses.replace(tokens, names={**tokenizer.names(words, shortest), **tokens.names})


def _configured(configs: Sequence[Config]) -> tuple[Facts, Supervision]:
    """The configurations joined setting by setting; the higher precedence wins, then the earlier argument."""
    read = [item for config in configs for item in _with_named(config)]
    read.sort(key=lambda item: -item[0])
    facts, settings = Facts(), Supervision()
    for _, more, supervision in read:
        facts = Facts(
            precision=_filled(facts.precision, more.precision, key="compute"),
            optimizer=_filled(facts.optimizer, more.optimizer, key="lr"),
        ).over(facts.over(more))
        settings = settings.over(supervision)
    return dataclasses.replace(facts, precision=_consistent(facts.precision)), settings


def _with_named(config: Config) -> Iterator[tuple[int, Facts, Supervision]]:
    """A configuration and those that it names, whose paths count from the working directory, then from beside it."""
    data, file = _loaded(config)
    module = _format_of(data, file)
    yield _read(module, data, file)
    follows = getattr(module, "follows", None)
    for named in follows(data) if follows else ():
        beside = Path(file).parent / named if isinstance(named, str) else None
        inner, inner_file = _loaded(beside if beside and not Path(named).exists() else named)
        yield _read(_format_of(inner, inner_file), inner, inner_file)


def _loaded(config: Config) -> tuple[Mapping[str, Any], str]:
    if isinstance(config, Mapping):
        return config, "the settings given"
    return config_of(Path(config)), str(config)


def _format_of(data: Mapping[str, Any], file: str) -> ModuleType:
    module = next((m for m in config_formats() if m.recognises(data)), None)
    if module is None:
        known = ", ".join(m.__name__.rsplit(".", 1)[-1].replace("_", " ") for m in config_formats())
        raise UnreadableInput(f"{file}: not a configuration that is known here (expected one of: {known})")
    return module


def _read(module: ModuleType, data: Mapping[str, Any], file: str) -> tuple[int, Facts, Supervision]:
    supervise = getattr(module, "supervision", None)
    settings = supervise(data, file) if supervise else Supervision()
    return getattr(module, "PRECEDENCE", 0), module.read(data, file), settings


def _filled(first: Any, second: Any, *, key: str) -> Any:
    """`first`, with what it leaves open taken from `second`; the source is the one that said `key`."""
    if first is None or second is None:
        return first or second
    open_fields = {f.name for f in dataclasses.fields(first) if getattr(first, f.name) is None}
    if key in open_fields and getattr(second, key) is not None:
        open_fields.add("source")
    return dataclasses.replace(first, **{name: getattr(second, name) for name in open_fields})


def _consistent(precision: Precision | None) -> Precision | None:
    """A loss scaler exists only in float16; the settings of one that "auto" did not switch on mean nothing."""
    if precision is None or precision.compute in (None, "float16"):
        return precision
    return dataclasses.replace(precision, scaler="none", initial_scale=None, hysteresis=None, min_scale=None)
