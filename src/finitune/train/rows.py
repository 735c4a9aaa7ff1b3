"""Training data in any form that `check` reads -> rows in the forms that TRL's SFTTrainer takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from finitune.finding import UnreadableInput
from finitune.sources.data.rows import rows
from finitune.train.images import images_of, in_parts, marked_text

Form = Literal["answers", "conversations", "text", "tokens"]
"""What rows are to the trainer: a prompt with its answer, whole conversations, plain text, or token ids."""

FORMS = "messages, conversations, prompt/completion, instruction/output, text or input_ids"
ROLES = {"human": "user", "gpt": "assistant"}
"""Of ShareGPT, in the words of chat templates."""
TOKENS = ("input_ids", "labels", "attention_mask")

Message = Mapping[str, str]
"""Before images take their places in it; see `images.in_parts`."""


def sft_rows(path: Path, *, chat: bool, sees: bool = False) -> tuple[Form, list[dict[str, Any]]]:
    """Every row of the file, all in one form.

    `chat`: the tokenizer has a chat template, so that instructions become messages. `sees`: the model takes images;
    where a row has some, each has a list `images`, and messages are lists of parts. Conversations of which each has one
    answer, the last message, become prompt and completion: the loss is then that of the answer.
    Raises UnreadableInput for a file without rows, for a row of another form than the first, and for images without
    their file, place or model.
    """
    found = list(_converted(path, chat=chat, sees=sees))
    if not found:
        raise UnreadableInput(f"{path}: no rows (expected {FORMS})")
    form: Form = found[0][1]
    for line, other, _ in found:
        if other != form:
            raise UnreadableInput(
                f"{path}: line {line}: {other}, and the rows before it are {form} (expected one form)"
            )
    data = [row for _, _, row in found]
    if form == "conversations" and all(_has_one_answer(row["messages"]) for row in data):
        form = "answers"
        data = [{**row, "prompt": row["messages"][:-1], "completion": row["messages"][-1:]} for row in data]
        data = [{key: value for key, value in row.items() if key != "messages"} for row in data]
    if any(row["images"] for row in data):
        return form, [_with_parts(row, f"{path}: line {line}") for (line, _, _), row in zip(found, data, strict=True)]
    return form, [{key: value for key, value in row.items() if key != "images"} for row in data]


def _with_parts(data: dict[str, Any], place: str) -> dict[str, Any]:
    """Messages of a row in lists of parts; its marks are counted over all of them."""
    keys = [key for key in ("messages", "prompt", "completion") if isinstance(data.get(key), list)]
    counts = [len(data[key]) for key in keys]
    said = in_parts([one for key in keys for one in data[key]], len(data["images"]), place) if keys else []
    return {**data, **{key: [said.pop(0) for _ in range(count)] for key, count in zip(keys, counts, strict=True)}}


def _converted(path: Path, *, chat: bool, sees: bool) -> Iterator[tuple[int, Form, dict[str, Any]]]:
    for row in rows(path):
        place, images = f"{path}: line {row.line}", images_of(path, row.line, row.data)
        if images and not sees:
            raise UnreadableInput(f"{place}: images (expected rows of text, for the model has no processor: {FORMS})")
        form, data = _form(row.data, place, chat=chat)
        yield row.line, form, {**data, "images": images}


def _form(data: Mapping[str, Any], place: str, *, chat: bool) -> tuple[Form, dict[str, Any]]:
    messages = data.get("messages", data.get("conversations"))
    if isinstance(messages, list):
        return "conversations", {"messages": _messages(cast("Sequence[Mapping[str, Any]]", messages))}
    if "prompt" in data and "completion" in data:
        return "answers", {key: _said(data[key]) for key in ("prompt", "completion")}
    if "instruction" in data and "output" in data:
        parts = [str(data[key]) for key in ("instruction", "input") if data.get(key)]
        return "answers", _asked("\n".join(parts), str(data["output"]), chat=chat)
    if "text" in data:
        return "text", {"text": data["text"]}
    if "input_ids" in data:
        return "tokens", {key: data[key] for key in TOKENS if key in data}
    keys = ", ".join(map(str, data))[:80] or "nothing"
    raise UnreadableInput(f"{place}: no form to train on, found {keys} (expected {FORMS})")


def _asked(question: str, answer: str, *, chat: bool) -> dict[str, Any]:
    if not chat:
        return {"prompt": f"{question}\n", "completion": answer}
    return {
        "prompt": [{"role": "user", "content": question}],
        "completion": [{"role": "assistant", "content": answer}],
    }


def _said(value: Any) -> Any:
    return _messages(cast("Sequence[Mapping[str, Any]]", value)) if isinstance(value, list) else value


def _messages(said: Sequence[Mapping[str, Any]]) -> list[Message]:
    pairs = [(one.get("role", one.get("from")), one.get("content", one.get("value"))) for one in said]
    return [{"role": ROLES.get(str(role), str(role)), "content": marked_text(content)} for role, content in pairs]


def _has_one_answer(messages: Sequence[Message]) -> bool:
    roles = [one["role"] for one in messages]
    return len(roles) > 1 and roles[-1] == "assistant" and roles.count("assistant") == 1
