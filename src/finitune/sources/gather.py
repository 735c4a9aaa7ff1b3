"""Everything that is given -> Facts: configurations, model, data, card and versions of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from finitune.facts import Activations, EmbeddingRows, Facts, Hardware, Model, TokenUse, Vocabulary
from finitune.finding import NotChecked, UnreadableInput, Where
from finitune.sources import environment, families, hardware, places, understood
from finitune.sources.configs import training_arguments
from finitune.sources.configs.interpolation import unfilled
from finitune.sources.configs.known_keys import unknown
from finitune.sources.configs.merge import Configured, joined
from finitune.sources.configs.runs import Config, Named, known_of, runs_of, walk
from finitune.sources.configs.tables import leaves
from finitune.sources.data import tokenised, tokenizer
from finitune.sources.named import Found, data_of, in_folder, is_hub_id, model_of
from finitune.sources.result import Reading, Supervision, Track, untracked
from finitune.sources.text import short
from finitune.sources.weights import checkpoint, first_token

NAMED_ROWS = 64
"""So many of the shortest used embedding rows get the text of their token."""


def gather(*configs: Config, **inputs: Any) -> Reading:
    """Facts from everything that is given, as for `gather_each`; of several runs those of the first."""
    return next(gather_each(*configs, **inputs))[1]


def gather_each(
    *configs: Config,
    model: str | Path | None = None,
    data: str | Path | None = None,
    gpu: str | None = None,
    requirements: str | Path | None = None,
    here: bool = True,
    track: Track = untracked,
) -> Iterator[tuple[Sequence[int], Reading]]:
    """One reading for each run that the configurations start, and the lines of its launch where there are several.

    `here`: the run will be on this machine, whose card counts where nobody names one.
    A reading is facts from everything that is given, and one entry for every input that is not. Weights and data are
    read once for all runs that would read them alike. Raises UnreadableInput for an input that cannot be used.
    """
    known, unused = known_of(configs)
    runs = runs_of(known)
    card = hardware.read(gpu) if gpu else None
    versions, source = environment.of_run(requirements, [one.file for run in runs for one in run])
    around = Facts(hardware=card, versions=versions or None)
    given_model, given_data = _given(model, data)
    words_of = cache(_tokenizer)

    @cache
    def weights(path: Path, compute: str | None) -> Reading:
        return checkpoint.read(path, compute=compute, track=track)

    @cache
    def rows(path: Path, model: Path | None, settings: Supervision) -> Reading:
        words, why = words_of(model)
        return tokenised.read(path, words, supervision=settings, why_no_tokenizer=why, track=track)

    @cache
    def activations(path: Path, first: tuple[int, ...], pad: int | None) -> Activations | None:
        return checkpoint.activations(path, np.array(first, np.int64), pad)

    for run in runs:
        asked, unknown_card = (None, None) if card else _asked(run)
        own = None if card or asked or unknown_card or not here else hardware.of_this_machine()
        asked = asked or own
        there = card or asked
        there = hardware.under(there, versions.get("torch")) if there else None
        open_values = set[tuple[str, str, str]]()
        files = [(one, _read(one, there, open_values)) for one in walk(run)]
        configured = joined([found for _, found in files])
        facts = around.over(Facts(hardware=asked)).over(configured.facts)
        model_here = given_model or _named_model_of(facts)
        data_here = given_data or _named_data_of(configured)
        compute = facts.precision.compute if facts.precision else None
        stored = _usable(model_here, partial(weights, compute=compute), "model")
        path = model_here.path if stored.facts.model else None
        words, _ = words_of(path)
        vocabulary = _vocabulary(words, stored.facts.model.vocabulary if stored.facts.model else None)
        facts = Facts(vocabulary=vocabulary).over(stored.facts.over(facts))
        facts = facts.over(Facts(model=_named_model(facts)))
        facts, undecided = _completed(facts, [one for one, _ in files if isinstance(one, Named)], there)
        used = _usable(data_here, partial(rows, model=path, settings=configured.supervision), "data")
        facts = _with_data(facts, used.facts, words)
        if path is not None and _float16_in_doubt(facts):
            first, pad = first_token.tokens_of(facts.tokens, facts.vocabulary, facts.batching, facts.optimizer)
            facts = dataclasses.replace(facts, activations=activations(path, tuple(first.tolist()), pad))
        missing = [
            *unused,
            *(configured.not_checked if configs else [NotChecked(input="config", why="no configuration given")]),
            *(NotChecked(input="config", why=why) for why in undecided),
            *_nothing_in(run, files),
            *stored.not_checked,
            *used.not_checked,
            *_not_computed(facts),
            *([] if card or asked else [NotChecked(input="gpu", why=unknown_card or "no --gpu given")]),
        ]
        named = [one.line for one in (model_here, data_here) if one.line]
        named += [f"{own.name} as card, which nvidia-smi shows here: --gpu says another"] if own else []
        named += [source] if source else []
        yield (
            [one.line for one in run if one.line is not None],
            Reading(
                facts=facts,
                not_checked=missing,
                understood=[*_understood(run, files), *named, *used.understood],
                places=places.of(run, [one for one, _ in files if isinstance(one, Named)]),
            ),
        )


def _given(model: str | Path | None, data: str | Path | None) -> tuple[Found | None, Found | None]:
    """What --model and --data say; a name on the hub is looked up in its cache, of a folder one file is read."""
    here = Found(path=Path(model)) if model is not None else None
    if here and here.path and not here.path.exists() and is_hub_id(str(model)):
        here = model_of(str(model), "--model")
    there = Found(path=Path(data)) if data is not None else None
    if there and there.path and there.path.is_dir():
        inside = in_folder(there.path)
        there = inside if inside.path else there
    return here, there


def _named_model_of(facts: Facts) -> Found:
    """The model that the configurations name."""
    training = facts.training
    if training is None or not training.model_name:
        return Found(missing=NotChecked(input="model", why="no --model given"))
    return model_of(training.model_name, str(Where.said(training.source).file))


def _named_data_of(configured: Configured) -> Found:
    """The data that the configurations name; the first that is here."""
    found = [data_of(name, file) for name, file in configured.data]
    none = Found(missing=NotChecked(input="data", why="no --data given"))
    return next((one for one in found if one.path), found[0] if found else none)


def _usable(found: Found, read: Callable[[Path], Reading], what: str) -> Reading:
    """What is read there; what was given and could not be used is marked so.

    Raises UnreadableInput for what the user gave; what a configuration names and cannot be read is said instead.
    """
    if found.path is None:
        return Reading(not_checked=[found.missing] if found.missing else [])
    try:
        reading = read(found.path)
    except UnreadableInput as error:
        if not found.named:
            raise
        return Reading(not_checked=[NotChecked(input=what, why=str(error), given=True)])
    marked = [dataclasses.replace(one, given=True) if one.input == what else one for one in reading.not_checked]
    return dataclasses.replace(reading, not_checked=marked)


def _completed(facts: Facts, files: Sequence[Named], card: Hardware | None) -> tuple[Facts, list[str]]:
    """What the formats leave to the stored weights, decided; one line for each that cannot be."""
    left: list[str] = []
    for one in files:
        found = one.format.completed(facts, one.settings, one.file, card) if one.format.completed else facts
        facts, left = (facts, [*left, found]) if isinstance(found, str) else (found, left)
    return facts, left


def _nothing_in(run: Sequence[Named], files: Sequence[tuple[Named | NotChecked, Configured]]) -> Iterator[NotChecked]:
    """Files that were given and say nothing that is looked at here."""
    for one in run:
        said = [found.facts for each, found in files if isinstance(each, Named) and each.file == one.file]
        if said and not any(understood.says(facts) for facts in said) and not _names_others(one, files):
            yield NotChecked(input="config", why=f"{one.file}: nothing in it is looked at here", given=True)


def _names_others(one: Named, files: Sequence[tuple[Named | NotChecked, Configured]]) -> bool:
    """A script may only start a program, and a file only name another."""
    return any(isinstance(each, Named) and each.file != one.file for each, _ in files)


def _asked(run: Sequence[Named]) -> tuple[Hardware | None, str | None]:
    """The card that the scripts of a run ask their scheduler for, or why it cannot be said."""
    for one in run:
        if found := one.format.card and one.format.card(one.data, one.file):
            try:
                return hardware.read(found.name), None
            except UnreadableInput:
                return None, f"{one.file}: line {found.line} asks for {found.name}, a card not known here; give --gpu"
    return None, None


def _understood(run: Sequence[Named], files: Sequence[tuple[Named | NotChecked, Configured]]) -> Iterator[str]:
    """One line for each file, with what all settings in it say together."""
    parts: dict[str, list[tuple[Named, Configured]]] = {}
    for one, found in files:
        if isinstance(one, Named) and Path(one.file).is_file():
            said = Configured(facts=one.format.read(one.settings, one.file)) if one.silent else found
            parts.setdefault(one.file, []).append((one, said))
    given = [one.file for one in run]
    over: dict[str, list[str]] = {}
    for file, inner in parts.items():
        for flags in (one.flags for one, _ in inner[:1] if one.flags and one.flags.file != file):
            typed = len(list(leaves(flags.data)))
            over.setdefault(flags.file, []).append(f"{typed} setting{'s' * (typed != 1)} over {file}")
    for file, inner in parts.items():
        one = inner[0][0]
        by = given[0] if file not in given and given else None
        by = f"started by {one.started.by}" if one.started else f"named by {by}" if by else None
        asked = one.format.card and one.format.card(one.data, file)
        facts = joined([found for _, found in inner]).facts
        card = asked if file in given else None
        yield understood.line_of(one, facts, by=by, card=card, over=over.get(file, ()))


def _tokenizer(model: Path | None) -> tuple[tokenizer.Tokenizer | None, str]:
    """The tokenizer of the model, or why there is none."""
    if model is None or not model.exists():
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


def _not_computed(facts: Facts) -> Iterator[NotChecked]:
    if _float16_in_doubt(facts) and facts.activations is None and facts.model and facts.model.path:
        why = f"what tokens reach in {facts.model.path} is computed for layouts like Llama's alone"
        yield NotChecked(input="activations", why=why)


def _with_short_rows_named(tokens: TokenUse, rows: EmbeddingRows, words: tokenizer.Tokenizer) -> TokenUse:
    inside = tokens.ids[tokens.ids < len(rows.rms)]
    shortest = inside[np.argsort(rows.rms[inside], kind="stable")[:NAMED_ROWS]]
    return dataclasses.replace(tokens, names={**tokenizer.names(words, shortest), **tokens.names})


def _unfilled(one: Named, said: set[tuple[str, str, str]]) -> Iterator[str]:
    """Settings that are looked at here and that an interpolation fills in when the program runs.

    `said`: file, name and text of those before, because parts of a file are read as files of their own.
    """
    tables = (*one.format.tables.values(), *training_arguments.FORMAT.tables.values())
    looked_at = {key.rpartition(".")[2] for table in tables for keys in table.values() for key in keys}
    for key, value in unfilled(one.data):
        name = key.rpartition(".")[2]
        known = name in looked_at | {"precision", "dtype", "torch_dtype", "fp16", "bf16", "batch_size"}
        if known and (one.file, name, value) not in said:
            said.add((one.file, name, value))
            yield f"{one.file}: {key} ({short(value)} is filled in when it runs)"


def _read(one: Named | NotChecked, card: Hardware | None, said: set[tuple[str, str, str]]) -> Configured:
    if isinstance(one, NotChecked):
        return Configured(not_checked=[one])
    kind, data, file = one.format, one.settings, one.file
    if one.silent:
        return Configured()
    facts = kind.read(data, file)
    left_out = [*kind.left_out(data, file), *(kind.undecided(data, file) if card is None else ())]
    return Configured(
        precedence=kind.precedence,
        facts=kind.settled(facts, data, file, card) if kind.settled and card else facts,
        supervision=kind.supervision(data, file),
        data=[(name, file) for name in kind.data(data)],
        unknown_keys=list(unknown(kind.name, data, file, open_ended=kind.open_ended)),
        not_checked=[NotChecked(input="config", why=why) for why in [*left_out, *_unfilled(one, said)]],
    )
