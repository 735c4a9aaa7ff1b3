"""Real text that every Python has: its language reference (`pydoc_data.topics`), plain and as questions and answers."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

Message = dict[str, str]
MIN_WORDS, MAX_WORDS = 12, 60


def reference() -> list[str]:
    """The articles of the language reference, in order of their names."""
    return [topics[name] for name in sorted(topics)]


def fingerprint() -> str:
    """8 hex digits of the text: it differs between versions of Python."""
    return hashlib.sha256("".join(reference()).encode()).hexdigest()[:8]


def dialogues() -> Iterator[list[Message]]:
    """One question and answer per paragraph of prose: how does the article go on after these words?"""
    seen: set[str] = set()
    for article in reference():
        title, _, rest = article.partition("\n")
        for paragraph in rest.split("\n\n"):
            words = paragraph.split()
            text = " ".join(words)
            if not MIN_WORDS <= len(words) <= MAX_WORDS or paragraph.startswith("  ") or text in seen:
                continue
            seen.add(text)
            question = f'{title.strip()}: what follows "{" ".join(words[:6])}"?'
            yield [{"role": "user", "content": question}, {"role": "assistant", "content": " ".join(words[6:])}]


def write_chat(directory: Path, *, evaluation: int = 64, seed: int = 0) -> tuple[Path, Path]:
    """Write `chat.jsonl` and `chat-eval.jsonl` (`evaluation` rows, held out), shuffled; returns both paths."""
    rows = [{"messages": messages} for messages in dialogues()]
    random.Random(seed).shuffle(rows)
    paths = directory / "chat.jsonl", directory / "chat-eval.jsonl"
    for path, part in zip(paths, (rows[evaluation:], rows[:evaluation]), strict=True):
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part), encoding="utf-8")
    return paths


def read_chat(path: Path) -> list[list[dict[str, Any]]]:
    """The messages of each row."""
    return [json.loads(line)["messages"] for line in path.read_text(encoding="utf-8").splitlines()]
