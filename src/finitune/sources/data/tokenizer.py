"""The tokenizer of a model directory: text -> token ids, and which ids are special."""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from finitune.facts import Ints
from finitune.finding import UnreadableInput
from finitune.json_memory import json_memory
from finitune.sources.text import json_object_of, short, text_of

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")

MAX_GROWTH = 32
"""Times that a text may be as long once it is normalised; SentencePiece puts three bytes for a space."""
MAX_MEMORY = 2**29
"""Bytes of a tokenizer.json as objects; one of 256,000 tokens and as many merges takes 140 MB."""

LONG = 2**18
"""Characters of a text that is tokenised in pieces."""

SPARE_PADS = tuple(re.compile(p, re.IGNORECASE) for p in (r"^\W*pad\W*$", r"pad", r"reserved|unused"))
"""How publishers name tokens that may pad, the plainest first."""


class NoTokenizer(Exception):
    """There is nothing to tokenise with, and why; an input that is missing, not one that is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """A loaded tokenizer. `special` maps ids of added tokens to their text."""

    library: Any
    chat_template: str | None
    special: Mapping[int, str]
    words: Mapping[str, str]
    """bos_token, eos_token, ... as `tokenizer_config.json` spells them; templates may use them."""
    pad_id: int | None
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    padding_side: str | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """One text: its ids, and for each id the characters [start, stop) it stands for."""

    ids: Sequence[int]
    spans: Sequence[tuple[int, int]]


def load(directory: str | Path) -> Tokenizer:
    """The tokenizer in `directory`.

    Raises NoTokenizer when there is none or the library is not installed, UnreadableInput when it is damaged.
    """
    directory = Path(directory)
    directory = directory if directory.is_dir() else directory.parent
    file = directory / "tokenizer.json"
    if not file.exists():
        raise NoTokenizer(f"{directory}: no tokenizer.json here")
    try:
        import tokenizers
    except ImportError:
        raise NoTokenizer("the package tokenizers is not installed (pip install tokenizers)") from None
    text = text_of(file, expected="a tokenizer")
    if json_memory(text) > MAX_MEMORY:
        raise UnreadableInput(f"{file}: more values than fit into the memory (expected a tokenizer)")
    try:
        grown = growth(json.loads(text).get("normalizer"))
        library: Any = tokenizers.Tokenizer.from_str(text) if grown <= MAX_GROWTH else None
    except BaseException as error:  # plain Exception for anything it dislikes, and a panic is not even that
        _let_through(error)
        raise UnreadableInput(f"{file}: not a tokenizer ({short(error)})") from None
    if library is None:
        raise UnreadableInput(f"{file}: normalizer: a text becomes {grown:g} times as long (expected {MAX_GROWTH})")
    library.no_truncation()
    library.no_padding()
    path = directory / "tokenizer_config.json"
    config = json_object_of(path) if path.exists() else {}
    words = {
        key: text for key in ("bos_token", "eos_token", "pad_token", "unk_token") if (text := _text(config.get(key)))
    }
    if halves := [key for key, text in words.items() if _HALF_CHARACTER.search(text)]:
        raise UnreadableInput(f"{path}: {halves[0]}: half of a surrogate pair (expected text)")
    added = library.get_added_tokens_decoder()
    ids: dict[str, int | None] = {key: library.token_to_id(text) for key, text in words.items()}
    return Tokenizer(
        library=library,
        chat_template=_chat_template(directory, config),
        special={int(id_): str(token.content) for id_, token in added.items()},
        words=words,
        pad_id=ids.get("pad_token"),
        bos_id=ids.get("bos_token"),
        eos_id=ids.get("eos_token"),
        unk_id=ids.get("unk_token"),
        padding_side=_text(config.get("padding_side")),
        source=str(file),
    )


def encode(tokenizer: Tokenizer, texts: Sequence[str], *, special: bool) -> list[Encoded]:
    """Tokenise a batch; `special` adds what the tokenizer itself puts around a text (a BOS, for example)."""
    if any(len(text) > LONG for text in texts):
        return [_long(tokenizer, text, special=special) for text in texts]
    try:
        found = tokenizer.library.encode_batch(list(texts), add_special_tokens=special)
    except BaseException as error:  # a regular expression that gives up is a panic
        _let_through(error)
        raise UnreadableInput(f"{tokenizer.source}: cannot tokenise the data ({short(error)})") from None
    return [Encoded(ids=one.ids, spans=one.offsets) for one in found]


def _long(tokenizer: Tokenizer, text: str, *, special: bool) -> Encoded:
    """A text in pieces that end at white space where there is any, so that the memory holds the tokens of one alone."""
    ids, spans, start = array("q"), array("q"), 0
    while start < len(text) or not start:
        stop = start + LONG
        if stop < len(text):
            space = max(text.rfind(" ", start + 1, stop), text.rfind("\n", start + 1, stop))
            stop = space if space > 0 else stop
        (piece,) = encode(tokenizer, [text[start:stop]], special=special and not start)
        ids.extend(piece.ids)
        spans.extend(start + place for span in piece.spans for place in span)
        start = max(stop, 1)
    pairs: Any = np.array(spans, np.int64)
    return Encoded(ids=ids, spans=pairs.reshape(-1, 2))


def growth(normalizer: Any) -> float:
    """How many times as long a text may become: the product of what the replacements of a normalizer put for a
    character, at most.
    """
    if not isinstance(normalizer, dict):
        return 1.0
    one = cast(dict[str, Any], normalizer)
    parts = one.get("normalizers")
    if isinstance(parts, list):
        return math.prod(map(growth, cast(list[Any], parts)))
    if one.get("type") == "Replace":
        pattern, content = one.get("pattern"), one.get("content")
        plain = cast(dict[str, Any], pattern).get("String") if isinstance(pattern, dict) else None
        if not isinstance(content, str):
            return 1.0
        # a regular expression may match between any two characters
        return max(1.0, len(content) / max(len(plain), 1)) if isinstance(plain, str) else 1.0 + len(content)
    return max(1.0, float(len(one["prepend"]))) if isinstance(one.get("prepend"), str) else 1.0


def _let_through(error: BaseException) -> None:
    """Raise again what is no fault of the library: a key that was pressed, a process that ends."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
        raise error


def size(tokenizer: Tokenizer) -> int:
    """One more than the largest token id, added tokens included."""
    ids: Mapping[str, int] = tokenizer.library.get_vocab(with_added_tokens=True)
    return max(ids.values(), default=-1) + 1


def spare_pad(tokenizer: Tokenizer, rows: int | None) -> tuple[str, int] | None:
    """A token for padding, a reserved one or the unknown one, that begins and ends nothing; its text and id.

    `rows` is the number of embedding rows, as an id beyond them cannot be looked up.
    """
    taken = {tokenizer.bos_id, tokenizer.eos_id}
    free = [
        (text, id_)
        for id_, text in sorted(tokenizer.special.items())
        if id_ not in taken and (rows is None or id_ < rows) and text not in (tokenizer.chat_template or "")
    ]
    for pattern in SPARE_PADS:
        for text, id_ in free:
            if pattern.search(text):
                return text, id_
    return next((one for one in free if one[1] == tokenizer.unk_id), None)


def names(tokenizer: Tokenizer, ids: Sequence[int] | Ints) -> dict[int, str]:
    """The text of each id that the tokenizer knows."""
    found = {int(id_): tokenizer.special.get(int(id_)) or tokenizer.library.id_to_token(int(id_)) for id_ in ids}
    return {id_: name for id_, name in found.items() if name}


def _chat_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.exists():
        return text_of(file, expected="a chat template")
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        named = {t.get("name"): t.get("template") for t in cast(list[Any], template) if isinstance(t, dict)}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        template = cast(dict[Any, Any], named).get("default")
    return template if isinstance(template, str) else None


def _text(token: Any) -> str | None:
    """A special token as `tokenizer_config.json` holds it: its text, or an object with its text."""
    if isinstance(token, Mapping):
        token = cast(Mapping[str, Any], token).get("content")
    return token if isinstance(token, str) and token else None
