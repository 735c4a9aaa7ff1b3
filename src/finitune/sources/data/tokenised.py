"""Training data -> TokenUse and Labels: chat, instruction, prompt/completion, text or token rows of any file.

The file is streamed. An end token that the trainer appends is not counted as supervised.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np

from finitune.facts import Facts, Ints, Labels, TokenUse
from finitune.finding import NotChecked, UnreadableInput
from finitune.sources.data.chat_template import ChatTemplate, Refused
from finitune.sources.data.end_tokens import COMPLETE, IGNORED, End, EndTokens, of_chat, of_labels
from finitune.sources.data.rows import Row, rows, weight
from finitune.sources.data.tokenizer import Encoded, NoTokenizer, Tokenizer, encode, names
from finitune.sources.result import Reading, Supervision, Track, untracked
from finitune.sources.text import kind_of, short

MAX_TOKEN_ID = 10_000_000
"""Forty times the largest vocabulary in use; beyond it an id is a mistake, and counting it would fill the memory."""

FAR = np.iinfo(np.int64).max
"""A place behind all text."""

BATCH = 256
MAX_BATCH_CHARACTERS = 2**20
"""Of the rows that are tokenised together; a token takes some 200 bytes on its way."""
FLUSH_TOKENS = 2**20

FORMS = "messages, conversations, prompt/completion, prompt/chosen/rejected, instruction/output, text or input_ids"
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """Text to tokenise; `supervised` are the character spans of the targets, None for all of it."""

    text: str
    special: bool
    supervised: Sequence[tuple[int, int]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chat:
    """A conversation to render; `answers` are its messages among which targets are looked for, None for all text."""

    messages: Sequence[Mapping[str, Any]]
    answers: Sequence[Mapping[str, Any]] | None
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    """One tokenised row. `real` leaves out padding, `ids` does not."""

    ids: Ints
    real: Ints
    supervised: int
    whole: int
    """The targets before truncation."""
    length: int
    """The tokens before truncation."""
    end: End = End.NOT_JUDGED


def read(
    path: str | Path,
    tokenizer: Tokenizer | None = None,
    *,
    supervision: Supervision | None = None,
    why_no_tokenizer: str = "no tokenizer (give --model DIR)",
    track: Track = untracked,
) -> Reading:
    """Facts about the data at `path`, tokenised as a trainer with these settings would.

    Raises UnreadableInput for a file or a row that cannot be read.
    """
    path = Path(path)
    settings = supervision or Supervision()
    census = _Census()
    lines, supervised, whole, lengths = array("q"), array("q"), array("q"), array("q")
    ends, made = EndTokens(), False
    render = _Renderer(tokenizer)
    try:
        examples = chain.from_iterable(map(_examples, track(rows(path), "rows of data", None)))
        for batch in _batches(examples, BATCH):
            for row, tokens in zip(batch, _tokenised(path, batch, tokenizer, render, settings), strict=True):
                census.add(tokens)
                lines.append(row.line)
                supervised.append(tokens.supervised)
                whole.append(tokens.whole)
                lengths.append(tokens.length)
                ends.add(tokens.end)
                made = made or ("labels" in row.data and COMPLETE not in row.data)
    except NoTokenizer as error:
        why = why_no_tokenizer if tokenizer is None else str(error)
        return Reading(not_checked=[NotChecked(input="data", why=f"{path}: not tokenised: {why}")])
    finally:
        render.close()
    if not lines:
        raise UnreadableInput(f"{path}: no rows (expected {FORMS})")
    use = census.use(tokenizer, str(path))
    if settings.packing or path.suffix == ".txt":
        why = f"{path}: rows are joined before training, so no row stands alone"
        return Reading(facts=Facts(tokens=use), not_checked=[NotChecked(input="labels", why=why)])
    labels = Labels(
        supervised=_ints(supervised), row_lines=_ints(lines), source=str(path), whole=_ints(whole),
        lengths=_ints(lengths), end_tokens=ends.found(_ints(lengths), made=made),
    )  # fmt: skip
    limit = settings.max_length or 0
    cut = sum(length > limit for length in lengths) if limit else 0
    read = f"{path}: {len(lines):,} rows" + (f", {cut:,} of them cut to {limit:,} tokens" if cut else "")
    return Reading(facts=Facts(tokens=use, labels=labels), understood=[read])


class _Census:
    """Counts of token ids, flushed to numpy in large pieces."""

    def __init__(self) -> None:
        self._pending: list[Ints] = [np.zeros(0, np.int64)]
        self._pending_size = 0
        self._first = array("q")
        self._counts = np.zeros(0, np.int64)
        self._sequences = 0

    def add(self, row: _Tokens) -> None:
        self._sequences += 1
        self._first.extend(row.ids[:1].tolist())
        self._pending.append(row.real)
        self._pending_size += len(row.real)
        if self._pending_size >= FLUSH_TOKENS:
            self._flush()

    def use(self, tokenizer: Tokenizer | None, source: str) -> TokenUse:
        self._flush()
        first = np.bincount(_ints(self._first), minlength=len(self._counts)).astype(np.int64)
        counts = np.pad(self._counts, (0, len(first) - len(self._counts)))
        ids = np.flatnonzero(counts + first).astype(np.int64)
        special = [int(i) for i in ids if int(i) in tokenizer.special] if tokenizer else []
        return TokenUse(
            ids=ids,
            counts=counts[ids],
            first=first[ids],
            sequences=self._sequences,
            names=names(tokenizer, special) if tokenizer else {},
            pad_id=tokenizer.pad_id if tokenizer else None,
            source=source,
        )

    def _flush(self) -> None:
        counts = np.bincount(np.concatenate(self._pending), minlength=len(self._counts))
        counts[: len(self._counts)] += self._counts
        self._counts, self._pending, self._pending_size = counts.astype(np.int64), [np.zeros(0, np.int64)], 0


class _Renderer:
    """The chat template, compiled when the first row of messages comes; it lives as long as the reading."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._template: ChatTemplate | None = None

    def __call__(self, asked: Mapping[int, _Chat]) -> dict[int, str]:
        """The text of each conversation. Raises UnreadableInput for one that the template refuses."""
        if not asked:
            return {}
        if self._tokenizer is None:
            raise NoTokenizer("no tokenizer")
        self._template = self._template or ChatTemplate(self._tokenizer)
        texts: dict[int, str] = {}
        for (i, chat), text in zip(
            asked.items(), self._template.render([chat.messages for chat in asked.values()]), strict=True
        ):
            if isinstance(text, Refused):
                raise UnreadableInput(f"{chat.where}: refused by the chat template ({short(text)})")
            texts[i] = text
        return texts

    def close(self) -> None:
        if self._template is not None:
            self._template.close()


def _examples(row: Row) -> Iterator[Row]:
    """The sequences of a row: of a preference pair both answers, each after the prompt."""
    data = row.data
    if "chosen" not in data or "rejected" not in data:
        yield row
        return
    for answer in (data["chosen"], data["rejected"]):
        if "prompt" in data:
            prompt = data["prompt"]
        elif isinstance(answer, list):  # the prompt is all but the last message
            said = cast(list[Any], answer)
            prompt, answer = said[:-1], said[-1:]
        else:
            prompt = ""
        yield Row(line=row.line, data={"prompt": prompt, "completion": answer})


def _tokenised(
    path: Path, batch: Sequence[Row], tokenizer: Tokenizer | None, render: _Renderer, settings: Supervision
) -> list[_Tokens]:
    limit = settings.max_length
    ready = {i: _given_tokens(path, row, limit, tokenizer) for i, row in enumerate(batch) if "input_ids" in row.data}
    asked = {i: _asked(path, row, settings) for i, row in enumerate(batch) if i not in ready}
    chats = {i: chat for i, chat in asked.items() if isinstance(chat, _Chat)}
    texts = {i: text for i, text in asked.items() if isinstance(text, _Text)}
    texts |= {i: _chat(text, chats[i].answers) for i, text in render(chats).items()}
    if texts and tokenizer is None:
        raise NoTokenizer("no tokenizer")
    for special in (False, True):
        chosen = {i: text for i, text in texts.items() if text.special is special}
        if chosen and tokenizer:
            for i, text in chosen.items():
                _refuse_half_characters(f"{path}: line {batch[i].line}", text.text)
            encoded = encode(tokenizer, [text.text for text in chosen.values()], special=special)
            marker = _marker(tokenizer, settings)
            for i, one in zip(chosen, encoded, strict=True):
                row = _encoded_row(one, texts[i], limit, marker)
                whole = not special and row.length == len(row.ids)
                ready[i] = dataclasses.replace(row, end=of_chat(row.ids, tokenizer)) if whole else row
    return [ready[i] for i in range(len(batch))]


def _refuse_half_characters(where: str, text: str) -> None:
    """JSON can spell half of a surrogate pair, which is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnreadableInput(f"{where}: character {error.start} is half of a surrogate pair (expected text)") from None


def _marker(tokenizer: Tokenizer, settings: Supervision) -> list[int]:
    """The tokens of the response template by itself, as collators look for them."""
    template = settings.response_template
    return list(encode(tokenizer, [template], special=False)[0].ids) if template else []


def _encoded_row(encoded: Encoded, text: _Text, limit: int | None, marker: Sequence[int]) -> _Tokens:
    ids, spans = np.array(encoded.ids[:limit], np.int64), encoded.spans[1:limit]
    # the first token is nobody's target, because targets are shifted by one
    if marker:
        count = _after_last(ids, marker)
    elif text.supervised is None:
        count = len(spans)
    else:
        count = _overlapping(spans, text.supervised)
    length, whole = len(encoded.ids), count
    if length > len(ids) and text.supervised is not None and not marker:  # of a text by itself the end may be lost
        whole = _overlapping(encoded.spans[1:], text.supervised)
    return _Tokens(ids=ids, real=ids, supervised=count, whole=whole, length=length)


def _overlapping(spans: Sequence[tuple[int, int]], targets: Sequence[tuple[int, int]]) -> int:
    """How many spans share a character with a target; the targets are in order and apart."""
    flat = np.fromiter(chain.from_iterable(spans), np.int64, 2 * len(spans))
    bounds = np.fromiter(chain.from_iterable([*targets, (FAR, FAR)]), np.int64, 2 * len(targets) + 2)
    starts, stops, firsts, ends = flat[::2], flat[1::2], bounds[::2], bounds[1::2]
    return int(np.count_nonzero(firsts[np.searchsorted(ends, starts, side="right")] < stops))


def _after_last(ids: Ints, marker: Sequence[int]) -> int:
    """How many tokens follow the last occurrence of `marker`; none where it does not occur."""
    size = len(marker)
    starts = [int(i) for i in np.flatnonzero(ids == marker[0]) if ids[i : i + size].tolist() == list(marker)]
    return len(ids) - starts[-1] - size if starts else 0


def _given_tokens(path: Path, row: Row, limit: int | None, tokenizer: Tokenizer | None) -> _Tokens:
    where = f"{path}: line {row.line}"
    ids = _token_list(where, row.data, "input_ids")
    if len(ids) and not 0 <= ids.min() <= ids.max() <= MAX_TOKEN_ID:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise UnreadableInput(f"{where}: input_ids: token id {wrong} (expected 0 to {MAX_TOKEN_ID})")
    labels = _token_list(where, row.data, "labels") if row.data.get("labels") is not None else ids
    mask = _token_list(where, row.data, "attention_mask") if row.data.get("attention_mask") is not None else None
    for key, values in (("labels", labels), ("attention_mask", mask)):
        if values is not None and len(values) != len(ids):
            raise UnreadableInput(f"{where}: {key}: {len(values)} values for {len(ids)} input_ids")
    real = ids[:limit] if mask is None else ids[:limit][mask[:limit] != 0]
    count = int(np.count_nonzero(labels[1:limit] != IGNORED))
    whole = int(np.count_nonzero(labels[1:] != IGNORED)) if labels is not ids else count
    end = End.NOT_JUDGED
    if labels is not ids and (limit is None or len(ids) <= limit):
        inside = np.ones(len(ids), bool) if mask is None else mask != 0
        end = of_labels(ids[inside], labels[inside], tokenizer, complete=row.data.get(COMPLETE) is True)
    return _Tokens(ids=ids[:limit], real=real, supervised=count, whole=whole, length=len(ids), end=end)


def _asked(path: Path, row: Row, settings: Supervision) -> _Text | _Chat:
    data, where = row.data, f"{path}: line {row.line}"
    if "messages" in data or "conversations" in data:
        messages = _messages(where, data.get("messages", data.get("conversations")))
        only = settings.assistant_only or settings.completion_only
        return _Chat(messages=messages, answers=messages if only else None, where=where)
    if "prompt" in data and "completion" in data:
        if isinstance(data["prompt"], list):
            prompt, answer = _messages(where, data["prompt"]), _messages(where, data["completion"])
            only = settings.completion_only is not False
            return _Chat(messages=[*prompt, *answer], answers=answer if only else None, where=where)
        return _continued(_string(where, data, "prompt"), _string(where, data, "completion"), settings)
    if "instruction" in data and "output" in data:
        parts = [_string(where, data, "instruction"), _string(where, data, "input") if data.get("input") else ""]
        return _continued("\n".join(part for part in parts if part) + "\n", _string(where, data, "output"), settings)
    if "text" in data:
        return _Text(text=_string(where, data, "text"), special=True, supervised=None)
    keys = short(", ".join(map(str, data)) or "nothing")
    raise UnreadableInput(f"{where}: no form that is known here, found {keys} (expected {FORMS})")


def _continued(prompt: str, answer: str, settings: Supervision) -> _Text:
    only = settings.completion_only is not False
    spans = [(len(prompt), len(prompt) + len(answer))] if only else None
    return _Text(text=prompt + answer, special=True, supervised=spans)


def _chat(text: str, answers: Sequence[Mapping[str, Any]] | None) -> _Text:
    if answers is None:
        return _Text(text=text, special=False, supervised=None)
    spans: list[tuple[int, int]] = []
    position = 0
    for message in answers:
        said = str(message["content"]).strip()
        found = text.find(said, position)
        if found < 0:
            # the template rewrote the words: what is supervised is not known, so nothing is claimed to be missing
            return _Text(text=text, special=False, supervised=None)
        position = found + len(said)
        if message["role"] == "assistant":
            spans.append((found, position))
    return _Text(text=text, special=False, supervised=spans)


def _messages(where: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise UnreadableInput(f"{where}: messages: expected a list, found {kind_of(value)}")
    out: list[dict[str, Any]] = []
    for number, item in enumerate(cast(list[Any], value), start=1):
        if not isinstance(item, Mapping):
            raise UnreadableInput(f"{where}: message {number}: expected role and content, found {kind_of(item)}")
        message = cast(Mapping[str, Any], item)
        role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
        if isinstance(content, list):  # parts of several kinds; the text ones are what is tokenised
            parts = [cast(Mapping[str, Any], p) for p in cast(list[Any], content) if isinstance(p, Mapping)]
            content = "".join(str(part.get("text") or "") for part in parts)
        if content is None and message.get("tool_calls"):
            content = ""
        if not isinstance(role, str) or not isinstance(content, str):
            raise UnreadableInput(f"{where}: message {number}: expected role and content as text")
        out.append({**message, "role": _ROLES.get(role, role), "content": content})
    return out


def _string(where: str, data: Mapping[str, Any], key: str) -> str:
    value = data[key]
    if not isinstance(value, str):
        raise UnreadableInput(f"{where}: {key}: expected text, found {kind_of(value)}")
    return value


def _token_list(where: str, data: Mapping[str, Any], key: str) -> Ints:
    value: list[Any] | None = data[key] if isinstance(data[key], list) else None
    try:
        found = np.array(value)
    except ValueError:  # lists of unequal length inside
        found = np.array(None)
    if found.ndim == 1 and (found.dtype.kind == "i" or not found.size):
        return found.astype(np.int64)
    if value and set(map(type, value)) == {int}:
        raise UnreadableInput(f"{where}: {key}: token id {max(value, key=abs)} (expected 0 to {MAX_TOKEN_ID})")
    raise UnreadableInput(f"{where}: {key}: expected a list of whole numbers")


def _batches(items: Iterable[Row], size: int) -> Iterator[list[Row]]:
    batch: list[Row] = []
    room = MAX_BATCH_CHARACTERS
    for item in items:
        batch.append(item)
        room -= weight(item.data)
        if len(batch) == size or room <= 0:
            yield batch
            batch, room = [], MAX_BATCH_CHARACTERS
    if batch:
        yield batch


def _ints(values: array[int]) -> Ints:
    return np.array(values, dtype=np.int64)
