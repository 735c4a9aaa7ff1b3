"""How much memory a JSON text takes once it is read: a few bytes can stand for a hundred times as many."""

from __future__ import annotations

COLLECTION = 160
"""Bytes of an object or a list with its first entry, in CPython 3.10 to 3.13 (an object with one key takes 184 to 232,
of which its colon pays a part)."""
VALUE = 64
"""Bytes of one further key or value with its place: a number takes 24 to 32, a short text 50 to 64."""


def json_memory(text: str | bytes) -> int:
    """Bytes that `text` takes as objects, at most; brackets, commas and colons within strings count as well."""
    if isinstance(text, bytes):
        opened = text.count(b"[") + text.count(b"{")
        between = text.count(b",") + text.count(b":")
    else:
        opened = text.count("[") + text.count("{")
        between = text.count(",") + text.count(":")
    return len(text) + COLLECTION * opened + VALUE * between
