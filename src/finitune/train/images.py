"""Images in rows of training data: where their files lie, and where in the messages each of them stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from finitune.finding import UnreadableInput
from finitune.sources.text import kind_of, short

MARK = "<image>"
"""Where in a text an image stands, as LLaVA and MiniCPM-V write it."""

Image = Mapping[str, Any]
"""`path`, absolute, or `bytes` as they stand in Parquet: what `datasets.Image` reads."""


def images_of(path: Path, line: int, data: Mapping[str, Any]) -> list[Image]:
    """Those of one row, from its keys `image` and `images` and from its messages, in their order.

    Raises UnreadableInput for a file that is not there.
    """
    named = data.get("images", data.get("image"))
    listed: Sequence[Any] = cast("Sequence[Any]", named) if isinstance(named, list) else [named]
    within = [one for message in _messages(data) for one in _in_parts(message.get("content", message.get("value")))]
    return [_image(path, line, one) for one in (*listed, *within) if one is not None]


def marked_text(content: Any) -> str:
    """The content of one message as text; of a list of parts each image becomes MARK."""
    if not isinstance(content, list):
        return str(content)
    parts = cast("Sequence[Mapping[str, Any]]", content)
    return "".join(MARK if part.get("type") == "image" else str(part.get("text") or "") for part in parts)


def in_parts(messages: Sequence[Mapping[str, str]], images: int, place: str) -> list[dict[str, Any]]:
    """Messages whose contents are lists of parts, as processors take them: an image for each MARK.

    Without any MARK the images stand before the first message of the user. Raises UnreadableInput where there are not
    as many images as marks.
    """
    marks = sum(one["content"].count(MARK) for one in messages)
    first = next((n for n, one in enumerate(messages) if one["role"] == "user"), 0) if images and not marks else None
    if first is None and marks != images:
        raise UnreadableInput(f"{place}: {MARK} stands {marks} times for {images} images (expected one for each)")
    return [
        {**one, "content": [*([{"type": "image"}] * images if n == first else []), *_split(one["content"])]}
        for n, one in enumerate(messages)
    ]


def _split(text: str) -> Iterator[dict[str, str]]:
    for number, part in enumerate(text.split(MARK)):
        if number:
            yield {"type": "image"}
        words = part.removeprefix("\n") if number else part
        if words:
            yield {"type": "text", "text": words}


def _messages(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key in ("messages", "conversations", "prompt", "completion"):
        said = data.get(key)
        if isinstance(said, list):
            yield from (one for one in cast("Sequence[Any]", said) if isinstance(one, Mapping))


def _in_parts(content: Any) -> Iterator[Any]:
    for part in cast("Sequence[Any]", content) if isinstance(content, list) else ():
        if isinstance(part, Mapping) and cast("Mapping[str, Any]", part).get("type") == "image":
            named = cast("Mapping[str, Any]", part)
            yield named.get("image", named.get("path", named.get("url")))


def _image(path: Path, line: int, said: Any) -> Image:
    if isinstance(said, Mapping):
        held = cast("Mapping[str, Any]", said)
        if isinstance(held.get("bytes"), bytes):
            return {"path": None, "bytes": held["bytes"]}
        said = held.get("path")
    if not isinstance(said, str):
        raise UnreadableInput(f"{path}: line {line}: image: expected the name of a file, found {kind_of(said)}")
    file = path.parent / said
    if not file.is_file():
        raise UnreadableInput(
            f"{path}: line {line}: image: {short(said)} is not there (expected a file beside the data)"
        )
    return {"path": str(file.resolve()), "bytes": None}
