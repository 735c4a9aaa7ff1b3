"""Training data in any form that `check` reads -> rows in the forms that TRL's SFTTrainer takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from finitune.finding import UnreadableInput
from finitune.sources.data.rows import rows

Form = Literal["answers", "conversations", "text", "tokens"]
"""What rows are to the trainer: a prompt with its answer, whole conversations, plain text, or token ids."""

FORMS = "messages, conversations, prompt/completion, instruction/output, text or input_ids"
ROLES = {"human": "user", "gpt": "assistant"}
"""Of ShareGPT, in the words of chat templates."""
TOKENS = ("input_ids", "labels", "attention_mask")

Message = Mapping[str, str]


def sft_rows(path: Path, *, chat: bool) -> tuple[Form, list[dict[str, Any]]]:
    """Every row of the file, all in one form.

    `chat`: the tokenizer has a chat template, so that instructions become messages. Conversations of which each has one
    answer, the last message, become prompt and completion: the loss is then that of the answer.
    Raises UnreadableInput for a file without rows, and for a row of another form than the first.
    """
    found = list(_converted(path, chat=chat))
    if not found:
        raise UnreadableInput(f"{path}: no rows (expected {FORMS})")
    form = found[0][1]
    for line, other, _ in found:
        if other != form:
            raise UnreadableInput(
                f"{path}: line {line}: {other}, and the rows before it are {form} (expected one form)"
            )
    data = [row for _, _, row in found]
    if form == "conversations" and all(_has_one_answer(row["messages"]) for row in data):
        return "answers", [{"prompt": row["messages"][:-1], "completion": row["messages"][-1:]} for row in data]
    return form, data


def _converted(path: Path, *, chat: bool) -> Iterator[tuple[int, Form, dict[str, Any]]]:
    for row in rows(path):
        data = row.data
        messages = data.get("messages", data.get("conversations"))
        if "image" in data or "images" in data:
            raise UnreadableInput(f"{path}: line {row.line}: images (expected rows of text: {FORMS})")
        if isinstance(messages, list):
            yield row.line, "conversations", {"messages": _messages(cast("Sequence[Mapping[str, Any]]", messages))}
        elif "prompt" in data and "completion" in data:
            said = {key: data[key] for key in ("prompt", "completion")}
            yield row.line, "answers", {key: _said(value) for key, value in said.items()}
        elif "instruction" in data and "output" in data:
            parts = [str(data[key]) for key in ("instruction", "input") if data.get(key)]
            yield row.line, "answers", _asked("\n".join(parts), str(data["output"]), chat=chat)
        elif "text" in data:
            yield row.line, "text", {"text": data["text"]}
        elif "input_ids" in data:
            yield row.line, "tokens", {key: data[key] for key in TOKENS if key in data}
        else:
            keys = ", ".join(map(str, data))[:80] or "nothing"
            raise UnreadableInput(f"{path}: line {row.line}: no form to train on, found {keys} (expected {FORMS})")


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
    return [{"role": ROLES.get(str(role), str(role)), "content": str(content)} for role, content in pairs]


def _has_one_answer(messages: Sequence[Message]) -> bool:
    roles = [one["role"] for one in messages]
    return len(roles) > 1 and roles[-1] == "assistant" and roles.count("assistant") == 1
