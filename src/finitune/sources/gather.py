"""Sources: the world -> Facts, one file per format.

A configuration format is one module of `configs` with `recognises(data) -> bool` and `read(data, file) -> Facts`; it is
found by its file name. It may also have
- `supervision(data, file)`: how rows become labels;
- `follows(data)`: other configurations that it names, or that stand in it; with `LENIENT` they may be absent;
- `runs(data)`: the line and the settings of each run, where it starts several;
- `overrides(data)`: settings of its own, laid over those of a file that it names if that file's format has `FLAGS`;
  with it `format_of_flags(flags)`, their format where they stand alone;
- `settled(facts, data, file, card)`: the facts, with what was left to the accelerator decided;
- `PRECEDENCE`: whose word counts where two disagree; 0 unless given;
- `parse(text, file)`: settings from text that is neither JSON nor YAML, None for text that is not its own;
- `left_out(data, file)`: what could not be read, one line each;
- a list of its keys in `configs/fields/<format>.txt`; with `OPEN_ENDED` programs may add keys of their own;
- what `spelling` names: how a patch is said in its words.
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

from finitune.facts import Activations, EmbeddingRows, Facts, Hardware, Model, TokenUse, Vocabulary
from finitune.finding import NotChecked, UnreadableInput
from finitune.sources import configs, environment, families, hardware
from finitune.sources.configs.known_keys import fields_of, unknown
from finitune.sources.configs.merge import Configured, joined
from finitune.sources.data import tokenised, tokenizer
from finitune.sources.result import Reading, Supervision, Track, untracked
from finitune.sources.text import settings_of, text_of
from finitune.sources.weights import checkpoint, first_token

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
    """Every module of `configs` that recognises a configuration."""
    modules = [
        importlib.import_module(f"{configs.__name__}.{info.name}") for info in pkgutil.iter_modules(configs.__path__)
    ]
    return tuple(module for module in modules if hasattr(module, "recognises"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One configuration of a run: what its file says, where, and what is laid over it."""

    module: ModuleType
    data: Mapping[str, Any]
    file: str
    under: tuple[str, ...] | None = ()
    """The keys of the file that lead to it, None when it stands nowhere."""
    launch: int = 0
    """Of the runs that the file starts, the one that it belongs to."""
    line: int | None = None
    """That of the launch, where there are several."""
    flags: Named | None = None
    """Those of the launch, which win over the file."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What counts in the run."""
        return {**self.data, **self.flags.data} if self.flags else self.data


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
    runs = runs_of(configs)
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
        return tokenised.read(data, words, supervision=settings, why_no_tokenizer=no_words, track=track)

    @cache
    def activations(first: tuple[int, ...], pad: int | None) -> Activations | None:
        return None if model is None else checkpoint.activations(model, np.array(first, np.int64), pad)

    for run in runs:
        configured = joined([
            Configured(not_checked=[one]) if isinstance(one, NotChecked) else _read(one, card) for one in walk(run)
        ])  # fmt: skip
        facts = around.over(configured.facts)
        stored = weights(facts.precision.compute if facts.precision else None)
        vocabulary = _vocabulary(words, stored.facts.model.vocabulary if stored.facts.model else None)
        facts = Facts(vocabulary=vocabulary).over(stored.facts.over(facts))
        facts = facts.over(Facts(model=_named_model(facts)))
        used = rows(configured.supervision)
        facts = _with_data(facts, used.facts, words)
        if _float16_in_doubt(facts):
            first, pad = first_token.tokens_of(facts.tokens, facts.vocabulary, facts.batching, facts.optimizer)
            facts = dataclasses.replace(facts, activations=activations(tuple(first.tolist()), pad))
        missing = [
            *(configured.not_checked if configs else [NotChecked(input="config", why="no configuration given")]),
            *stored.not_checked,
            *used.not_checked,
            *([] if gpu else [NotChecked(input="gpu", why="no --gpu given")]),
        ]
        yield [one.line for one in run if one.line is not None], Reading(facts=facts, not_checked=missing)


def _tokenizer(model: str | Path | None) -> tuple[tokenizer.Tokenizer | None, str]:
    """The tokenizer of the model, or why there is none."""
    if model is None or not Path(model).exists():
        return None, "no tokenizer (give --model DIR)"
    try:
        return tokenizer.load(model), ""
    except tokenizer.NoTokenizer as error:
        return None, str(error)


def _named_model(facts: Facts) -> Model | None:
    """What the name in a configuration says of a model whose files are not given; it has no path."""
    name = facts.training.model_name if facts.training else None
    family = families.family_of(name) if name else None
    return Model(family=family) if family else None


def _vocabulary(words: tokenizer.Tokenizer | None, rows: int | None) -> Vocabulary | None:
    spare = words and tokenizer.spare_pad(words, rows)
    return None if words is None else Vocabulary(
        spare_pad={spare[0]: spare[1]} if spare else None,
        size=tokenizer.size(words), pad_id=words.pad_id, bos_id=words.bos_id, eos_id=words.eos_id, unk_id=words.unk_id,
        padding_side=words.padding_side, chat_template=words.chat_template is not None, source=words.source,
        template_markers=[text for text in words.special.values() if text in (words.chat_template or "")],
    )  # fmt: skip


def _with_data(facts: Facts, found: Facts, words: tokenizer.Tokenizer | None) -> Facts:
    tokens = found.tokens
    if words and tokens and facts.rows:
        tokens = _with_short_rows_named(tokens, facts.rows, words)
    return Facts(tokens=tokens).over(found).over(facts)


def _float16_in_doubt(facts: Facts) -> bool:
    """Whether the weights are worth reading once more."""
    outlying = facts.weights is not None and any(tensor.outlying for tensor in facts.weights.tensors)
    eager = facts.attention is not None and facts.attention.implementation == "eager"
    return facts.precision is not None and facts.precision.compute == "float16" and (outlying or eager)


def _with_short_rows_named(tokens: TokenUse, rows: EmbeddingRows, words: tokenizer.Tokenizer) -> TokenUse:
    inside = tokens.ids[tokens.ids < len(rows.rms)]
    shortest = inside[np.argsort(rows.rms[inside], kind="stable")[:NAMED_ROWS]]
    return dataclasses.replace(tokens, names={**tokenizer.names(words, shortest), **tokens.names})


def runs_of(configs: Sequence[Config]) -> list[tuple[Named, ...]]:
    """The runs that the configurations start together; nearly always one.

    Raises UnreadableInput for what is given and cannot be read.
    """
    return list(itertools.islice(itertools.product(*map(_runs_of, configs)), MAX_RUNS))


def _runs_of(config: Config) -> list[Named]:
    data, file = _loaded(config)
    module = format_of(data)
    if module is None:
        known = ", ".join(_name(m).replace("_", " ") for m in config_formats())
        raise UnreadableInput(f"{file}: not a configuration that is known here (expected one of: {known})")
    runs = getattr(module, "runs", None)
    several = list(runs(data)) if runs else []
    if len(several) < 2:
        return [Named(data=data, file=file, module=module)]
    return [Named(data=one, file=file, module=module, launch=i, line=line) for i, (line, one) in enumerate(several)]


def walk(run: Sequence[Named]) -> Iterator[Named | NotChecked]:
    """The configurations of a run and those that they name, each file once; or why one that is named cannot be read."""
    seen: set[Path] = {Path(one.file).resolve() for one in run}
    for one in run:
        yield from _with_named(one, seen, depth=0)


def _with_named(one: Named, seen: set[Path], *, depth: int) -> Iterator[Named | NotChecked]:
    yield one
    follows, overrides = getattr(one.module, "follows", None), getattr(one.module, "overrides", None)
    flags: Mapping[str, Any] = overrides(one.data) if overrides else {}
    inner: list[Named] = []
    for named in follows(one.settings) if follows and depth < MAX_FOLLOWED else ():
        path = _beside(one.file, named) if isinstance(named, str) else None
        if path is not None and not path.is_file() and getattr(one.module, "LENIENT", False):
            yield NotChecked(input="config", why=f"{one.file} names {named}, which is not here")
            continue
        if path is not None and path.resolve() in seen:
            continue
        seen |= {path.resolve()} if path else set()
        # settings that stand in place belong to the file they stand in
        data, file = (cast("Mapping[str, Any]", named), one.file) if path is None else _loaded(path)
        module = format_of(data)
        if module is None:
            why = f"{one.file} names {file}, which is not a configuration that is known here"
            yield NotChecked(input="config", why=why)
        elif path is None:
            inner.append(dataclasses.replace(one, module=module, data=data, under=_under(one, data), flags=None))
        elif flags and getattr(module, "FLAGS", False):
            inner.append(Named(module=module, data=data, file=file, flags=_known(one, flags, module, data)))
            flags = {}
        else:
            inner.append(Named(module=module, data=data, file=file))
    if flags and (module := one.module.format_of_flags(flags)):
        inner.insert(0, dataclasses.replace(one, module=module, data=flags))
    for found in inner:
        yield from _with_named(found, seen, depth=depth + 1)


def _known(launch: Named, flags: Mapping[str, Any], module: ModuleType, data: Mapping[str, Any]) -> Named:
    """The flags of a launch that the format of the file that it names knows."""
    fields = fields_of(_name(module))
    own = {*data, *(fields.names if fields else ())}
    return dataclasses.replace(launch, module=module, data={key: flags[key] for key in flags if key in own})


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


def _read(one: Named, card: Hardware | None) -> Configured:
    module, data, file = one.module, one.settings, one.file
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
