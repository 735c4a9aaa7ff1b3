"""What somebody tells about a run, in words of their own -> named observations; what no file states, only people.

Two readings. A phrase of the table is a fact by itself ("Attempting to unscale FP16 gradients"). A comparison names a
subject and a verdict in one clause ("bf16 on another card is fine", `{"cpu": "ok"}`), and becomes `subject-sound` or
`subject-bad`: what changed when one thing was changed is the best evidence there is. "not fine" is bad, "no NaN" sound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from finitune.sources.text import without_links

LONGEST = 10_000
"""Characters that are read of each part; a description is shorter."""
MOST_LINES = 5_000
"""Lines of the log that are read from either end."""
QUOTED = 80


_EDGE = "(?:(?<![a-z0-9])(?=[a-z0-9])|(?<=[a-z0-9])(?![a-z0-9]))"
"""A word's edge where an underscore is none of its letters: settings are written with them."""


def _phrases(text: str) -> dict[str, dict[str, re.Pattern[str]]]:
    """Section -> observation -> its pattern, from the lines of `statements.txt`."""
    written: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            section = written.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            slug, _, pattern = line.partition(": ")
            section.setdefault(slug, []).append(pattern.replace(r"\b", _EDGE).replace(r"\w*", r"\w{0,20}"))
    return {
        name: {slug: re.compile("|".join(parts), re.IGNORECASE) for slug, parts in table.items()}
        for name, table in written.items()
    }


_TABLES = _phrases((Path(__file__).parent / "statements.txt").read_text(encoding="utf-8"))
PRINTED, TOLD, OFF, SUBJECTS = (_TABLES[name] for name in ("printed", "told", "off", "subjects"))

_SOUND = re.compile(
    r"\b(ok|okay|fine|works?|worked|working|sound|normal\w*|converge[sd]?|cure[sd]?|fix(es|ed)?|clean|correct\w*|"
    r"good|stable|success\w*|match\w*|identical|no nan|without nan|healthy|finite|true works|solve[sd]?)\b",
    re.IGNORECASE,
)
_BAD = re.compile(
    r"\b(fail\w*|nan|inf|bad|wrong|broken|diverge\w*|garbage|"
    r"worse|crash\w*|explode\w*|overflow\w*|same (error|nan|problem)"
    r"|jumps?|gibberish|higher)\b",
    re.IGNORECASE,
)
_NOT = re.compile(r"\b(not|n't|never|no longer|doesn'?t|isn'?t|didn'?t|without|no)\b(?=\W+(\w+\W+)?$)", re.IGNORECASE)
_IS_OFF = re.compile(r"\W*(false|off|without|disabled?|no(?! ?(nan|inf|error|problem)))\b", re.IGNORECASE)
_SWITCHED_OFF = re.compile(r"[^:]+: (false|null|off|none|0|0\.0)$", re.IGNORECASE)
_CLAUSE = re.compile(r"[;\n]|,\s|\.\s|\bbut\b|\bwhile\b|\bwhereas\b|\band\b(?=.{0,40}\b(fine|ok|fail|nan)\b)")


def read(case: Mapping[str, Any]) -> dict[str, str]:
    """Observation -> the words it was read from, at most `QUOTED` characters."""
    config = case.get("config")
    entries = cast("Mapping[str, Any]", config).items() if isinstance(config, Mapping) else ()
    settings = [f"{key}: {_plain(value)}" for key, value in entries]
    log = case.get("log")
    lines = cast("list[Any]", log) if isinstance(log, list) else [log or ""]
    lines = [
        str(line) for line in (lines if len(lines) <= 2 * MOST_LINES else lines[:MOST_LINES] + lines[-MOST_LINES:])
    ]
    about = [str(case.get(key) or "") for key in ("framework", "title", "model", "hardware")]
    told = [part[:LONGEST] for part in (*about, *settings) if part]
    found = dict(_matches(PRINTED, [*told, *(line[:LONGEST] for line in lines)]))
    found |= dict(_matches(OFF, told))
    found |= dict(_matches(TOLD, [part for part in told if not _SWITCHED_OFF.match(part)]))
    for part in (about[1], *settings):
        found |= dict(_comparisons(part[:LONGEST]))
    return found


def _matches(table: Mapping[str, re.Pattern[str]], parts: list[str]) -> Iterator[tuple[str, str]]:
    for slug, pattern in table.items():
        for part in parts:
            if pattern.search(part):
                yield slug, _quote(part)
                break


def _comparisons(part: str) -> Iterator[tuple[str, str]]:
    """`subject-sound` and `subject-bad` of every clause; a clause without a subject speaks of the setting's name."""
    name, _, value = part.partition(": ")
    for clause in filter(str.strip, map(str, _CLAUSE.split(value or name))):
        verdict = _verdict(clause)
        if verdict is None:
            continue
        spoken_of = _subjects(clause) or (_subjects(f"{name}: {clause}") if value else [])
        turned = "no-" if _IS_OFF.match(clause) else ""
        yield from ((f"{turned}{subject}-{verdict}", _quote(part)) for subject in spoken_of)


def _subjects(text: str) -> list[str]:
    return [subject for subject, pattern in SUBJECTS.items() if pattern.search(text)]


def _verdict(clause: str) -> str | None:
    """The first word that judges, turned round by a negation before it."""
    sound, bad = _SOUND.search(clause), _BAD.search(clause)
    first = min((m for m in (sound, bad) if m), key=lambda m: m.start(), default=None)
    if first is None:
        return None
    negated = _NOT.search(clause[: first.start()]) is not None
    return "sound" if (first is sound) != negated else "bad"


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def _quote(part: str) -> str:
    """Short, on one line, without links: who pastes a thread pastes its traps."""
    text = " ".join(without_links(part, "(link)").split())
    return text if len(text) <= QUOTED else text[: QUOTED - 3] + "..."
