"""Everything that is given -> Facts: configurations, model, data, card and versions of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from finitune.facts import Activations, EmbeddingRows, Facts, Hardware, Model, TokenUse, Vocabulary
from finitune.finding import NotChecked, UnreadableInput
from finitune.sources import environment, families, hardware, understood
from finitune.sources.configs.format import Place
from finitune.sources.configs.known_keys import unknown
from finitune.sources.configs.merge import Configured, joined
from finitune.sources.configs.runs import Config, Named, runs_of, walk
from finitune.sources.data import tokenised, tokenizer
from finitune.sources.result import Reading, Supervision, Track, untracked
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
        asked, unknown_card = (None, None) if card else _asked(run)
        files = [(one, _read(one, card or asked)) for one in walk(run)]
        configured = joined([found for _, found in files])
        facts = around.over(Facts(hardware=asked)).over(configured.facts)
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
            *_not_computed(facts),
            *([] if card or asked else [NotChecked(input="gpu", why=unknown_card or "no --gpu given")]),
        ]
        yield (
            [one.line for one in run if one.line is not None],
            Reading(
                facts=facts,
                not_checked=missing,
                understood=list(_understood(run, files)),
                places=_places(run, [one for one, _ in files if isinstance(one, Named)]),
            ),
        )


def _asked(run: Sequence[Named]) -> tuple[Hardware | None, str | None]:
    """The card that the scripts of a run ask their scheduler for, or why it cannot be said."""
    for one in run:
        if found := one.format.card and one.format.card(one.data, one.file):
            try:
                return hardware.read(found.name), None
            except UnreadableInput:
                return None, f"{one.file}: line {found.line} asks for {found.name}, a card not known here; give --gpu"
    return None, None


def _places(run: Sequence[Named], files: Sequence[Named]) -> dict[str, dict[str, Place]]:
    """The line of each key, in the file that says it: what is typed for a program stands where it is started."""
    found: dict[str, dict[str, Place]] = {}
    for one in [*run, *files]:
        if one.format.places:
            found.setdefault(one.file, {}).update(one.format.places(one.data))
    for one in files:
        by = found.get(one.started.by) if one.started else None
        if by is not None and one.format.from_flags:
            for key, flag in one.format.from_flags(one.data).items():
                by.setdefault(key, by.get(flag, by[""]))
    return found


def _understood(run: Sequence[Named], files: Sequence[tuple[Named | NotChecked, Configured]]) -> Iterator[str]:
    """One line for each file, with what all settings in it say together."""
    parts: dict[str, list[tuple[Named, Configured]]] = {}
    for one, found in files:
        if isinstance(one, Named) and Path(one.file).is_file():
            said = Configured(facts=one.format.read(one.settings, one.file)) if one.silent else found
            parts.setdefault(one.file, []).append((one, said))
    given = [one.file for one in run]
    for file, inner in parts.items():
        one = inner[0][0]
        by = given[0] if file not in given and given else None
        by = f"started by {one.started.by}" if one.started else f"named by {by}" if by else None
        asked = one.format.card and one.format.card(one.data, file)
        facts = joined([found for _, found in inner]).facts
        yield understood.line_of(one, facts, by=by, card=asked if file in given else None)


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


def _not_computed(facts: Facts) -> Iterator[NotChecked]:
    if _float16_in_doubt(facts) and facts.activations is None and facts.model and facts.model.path:
        why = f"what tokens reach in {facts.model.path} is computed for layouts like Llama's alone"
        yield NotChecked(input="activations", why=why)


def _with_short_rows_named(tokens: TokenUse, rows: EmbeddingRows, words: tokenizer.Tokenizer) -> TokenUse:
    inside = tokens.ids[tokens.ids < len(rows.rms)]
    shortest = inside[np.argsort(rows.rms[inside], kind="stable")[:NAMED_ROWS]]
    return dataclasses.replace(tokens, names={**tokenizer.names(words, shortest), **tokens.names})


def _read(one: Named | NotChecked, card: Hardware | None) -> Configured:
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
        unknown_keys=list(unknown(kind.name, data, file, open_ended=kind.open_ended)),
        not_checked=[NotChecked(input="config", why=why) for why in left_out],
    )
