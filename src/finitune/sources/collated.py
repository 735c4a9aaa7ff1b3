"""A data set in memory -> JSON lines that `check` reads: its rows, or what the program's own collator makes of them.

Rows without `input_ids` are first tokenised with the program's tokenizer and its chat template, as TRL does it.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, cast

from finitune.finding import NotChecked, UnreadableInput
from finitune.sources.data.end_tokens import COMPLETE, IGNORED
from finitune.sources.text import kind_of, short

DATA = "DATA.jsonl"
"""How the file of data is called that a program holds."""
MAX_ROWS = 50_000
"""Of a larger data set the first rows are read."""
MAX_COLLATED = 4096
"""A collator is the program's own and may be slow; the first rows show what it masks."""
BATCH = 8
INPUTS = ("input_ids", "attention_mask", "labels", "token_type_ids", "completion_mask", "assistant_masks")
"""Columns that trainers hand to a collator; the others they take away."""

Collator = Callable[[list[dict[str, Any]]], Any]


def data_in(
    folder: Path, rows: Any, tokenizer: Any = None, collator: Collator | None = None
) -> tuple[Path, list[NotChecked]]:
    """The data set as a file, and what of it was left out.

    Raises UnreadableInput for rows that have no named columns, and for a collator that fails on them.
    """
    path, left = folder / DATA, list[NotChecked]()
    most = MAX_ROWS if collator is None else MAX_COLLATED
    named = _named(rows)
    with path.open("w", encoding="utf-8") as out, _random_numbers_kept():
        first = islice(named, most)
        made: Any = first if collator is None else _collated(first, tokenizer, collator)
        for row in made:
            out.write(json.dumps(row, default=_plain) + "\n")
        if next(named, None) is not None:
            left.append(NotChecked(input="data", why=f"only the first {most:,} rows were read"))
    return path, left


def _named(rows: Any) -> Iterator[Mapping[str, Any]]:
    """The rows of one split, each with named columns."""
    held: Any = None if isinstance(rows, Mapping) else rows
    if hasattr(held, "__getitem__") and hasattr(held, "__len__"):
        found: Iterator[Any] = (held[i] for i in range(len(held)))
    elif hasattr(held, "__iter__"):
        found = iter(held)
    else:
        raise UnreadableInput(f"dataset: expected rows of one split, found {type(held).__name__}")
    for count, row in enumerate(found):
        if not isinstance(row, Mapping | str):
            raise UnreadableInput(f"dataset: row {count}: expected named columns, found {kind_of(row)}")
        if isinstance(row, str):
            yield {"text": row}
        else:
            yield cast("Mapping[str, Any]", row)


def _collated(rows: Iterator[Mapping[str, Any]], tokenizer: Any, collator: Collator) -> Iterator[Mapping[str, Any]]:
    """The sequences that the collator makes, each without its padding."""
    count = 0
    while batch := list(islice(rows, BATCH)):
        try:
            ready = [_tokenised(row, tokenizer) for row in batch]
            complete = ["input_ids" not in row and "text" not in row for row in batch]
            made = _called(collator, ready, own="labels" in batch[0])
            ids, labels = (_plain(made[key]) for key in ("input_ids", "labels"))
            mask = _plain(made["attention_mask"]) if "attention_mask" in made else None
        except Exception as error:
            what = f"rows {count} to {count + len(batch) - 1}: {type(error).__name__}: {short(error)}"
            raise UnreadableInput(f"data_collator: {what} (expected input_ids and labels)") from None
        for i, (row, targets) in enumerate(zip(ids, labels, strict=True)):
            real = [bool(one) for one in mask[i]] if mask is not None else _unpadded(row, targets, tokenizer)
            kept = [(token, label) for token, label, is_real in zip(row, targets, real, strict=True) if is_real]
            answered = {COMPLETE: True} if len(ids) == len(complete) and complete[i] else {}
            yield {"input_ids": [token for token, _ in kept], "labels": [label for _, label in kept], **answered}
        count += len(batch)


def _called(collator: Collator, rows: Sequence[Mapping[str, Any]], *, own: bool) -> Any:
    """Rows without labels of their `own` get those that TRL gives them; a collator may also want none."""
    given = [{key: row[key] for key in INPUTS if key in row} for row in rows]
    if own or not any("labels" in row for row in given):
        return collator(given)
    try:
        return collator([{"labels": row["input_ids"], **row} for row in given])
    except Exception:
        return collator([{key: row[key] for key in ("input_ids", "attention_mask") if key in row} for row in given])


def _completion(prompt: Sequence[int], whole: Sequence[int]) -> dict[str, list[int]]:
    """A prompt and its answer, of which the answer alone is learned."""
    begin, answer = len(prompt), whole[len(prompt) :]
    mask = [0] * begin + [1] * len(answer)
    return {"input_ids": list(whole), "completion_mask": mask, "labels": [IGNORED] * begin + list(answer)}


def _unpadded(ids: Sequence[int], labels: Sequence[int], tokenizer: Any) -> list[bool]:
    """Where no mask says it: all but padding tokens at the ends that are no targets."""
    pad = getattr(tokenizer, "pad_token_id", None)
    inner = [at for at, (token, label) in enumerate(zip(ids, labels, strict=True)) if token != pad or label >= 0]
    return [bool(inner) and inner[0] <= at <= inner[-1] for at in range(len(ids))]


def _tokenised(row: Mapping[str, Any], tokenizer: Any) -> Mapping[str, Any]:
    """The columns that a collator reads, with the targets of a completion marked as TRL marks them."""
    if "input_ids" in row:
        made = {key: _plain(row[key]) for key in INPUTS if key in row}
    elif tokenizer is None:
        raise ValueError("rows of text want a tokenizer")
    elif isinstance(said := row.get("messages", row.get("conversations")), list):
        made = {"input_ids": _chat(tokenizer, said)}
    elif isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str):
        prompt, whole = (_ids(tokenizer, text) for text in (row["prompt"], row["prompt"] + row["completion"]))
        made = _completion(prompt, [*whole, *_end(tokenizer)])
    elif isinstance(row.get("prompt"), list) and isinstance(row.get("completion"), list):
        prompt, whole = (_chat(tokenizer, said) for said in (row["prompt"], [*row["prompt"], *row["completion"]]))
        made = _completion(prompt, whole)
    elif isinstance(row.get("text"), str):
        made = {"input_ids": [*_ids(tokenizer, row["text"]), *_end(tokenizer)]}
    else:
        raise ValueError(f"no column of text or tokens among {', '.join(map(str, row))}")
    return {"attention_mask": [1] * len(made["input_ids"]), **made}


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(_plain(tokenizer(text)["input_ids"]))


def _chat(tokenizer: Any, messages: Any) -> list[int]:
    made: Any = tokenizer.apply_chat_template(messages, tokenize=True)
    return list(_plain(made["input_ids"] if isinstance(made, Mapping) else made))


def _end(tokenizer: Any) -> list[int]:
    """TRL ends a text with the end token."""
    end = getattr(tokenizer, "eos_token_id", None)
    return [] if end is None else [end]


@contextmanager
def _random_numbers_kept() -> Generator[None, None, None]:
    """A collator may draw some; the program's own go on as if nobody had."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    held = random.getstate(), numpy and numpy.random.get_state(), torch and torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(held[0])
        if numpy:
            numpy.random.set_state(held[1])
        if torch:
            torch.set_rng_state(held[2])


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    held: Any = value
    return held if isinstance(value, list | int | float) else str(held)
