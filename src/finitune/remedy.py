"""What a chapter of `remedies/` may declare.

safety = "safe" | "unsafe" | "advice"     safe: no meaning changes; unsafe: read what it changes; advice: by hand
propose(facts by name...) -> Cure | None  the command or patch for these facts
apply(model, output, ...) -> Iterator     for `finitune repair NAME`; only where files are rewritten
"""

from __future__ import annotations

from collections.abc import Mapping

from finitune.chapter import Chapter, chapters

SECTIONS = ("What it changes", "When it is safe", "References")
"""The sections every chapter's docstring has, in this order."""


def remedies() -> Mapping[str, Chapter]:
    """Every remedy, by slug."""
    return chapters("remedies")
