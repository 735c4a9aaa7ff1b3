"""Syntax trees of the text that users write; places are offsets of characters in that text."""

from __future__ import annotations

import importlib
import re
import time
from functools import cache
from typing import Literal

from tree_sitter import Language, Node, Parser

MAX_SECONDS = 5.0
"""Text that people write takes milliseconds; thousands of brackets that nobody closes take minutes."""

_OTHER = re.compile(r"[^\x00-\x7f]")


def parsed(text: str, language: Literal["bash", "json", "yaml"]) -> Node:
    """The root of the syntax tree. Raises ValueError for text that takes longer than any that people write.

    Each character that is not ASCII is read as a letter, so that the offsets of bytes are those of characters.
    """
    source = memoryview(_OTHER.sub("x", text).encode("ascii"))
    end = time.monotonic() + MAX_SECONDS
    try:
        tree = Parser(_language(language)).parse(
            lambda at, _point: source[at:],
            encoding="utf8",
            progress_callback=lambda _at, _error: time.monotonic() > end,
        )
    except ValueError:
        raise ValueError("nested too deeply") from None
    return tree.root_node


@cache
def _language(name: str) -> Language:
    grammar: object = importlib.import_module(f"tree_sitter_{name}").language()
    return Language(grammar)
