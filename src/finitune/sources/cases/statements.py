"""What somebody writes about a run, in words of their own -> observations; what no file states, only people.

Two readings. A phrase of the table is a fact by itself ("gradient checkpointing"). A comparison names a subject and a
verdict in one clause ("bf16 on another card is fine", `{"cpu": "ok"}`), and becomes `subject-works` or `subject-fails`:
what changed when one thing was changed is the best evidence there is. "not fine" fails, "no NaN" works. Messages that
programs print are known by `sources.logs.messages`, here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from finitune.observations import Observation, meanings
from finitune.sources.logs import messages
from finitune.sources.text import without_links

LONGEST = 10_000
"""Characters that are read of each part; a description is shorter."""
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
WRITTEN, OFF, SUBJECTS = (_TABLES[name] for name in ("written", "off", "subjects"))

_GOOD = re.compile(
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
_SWITCHED_OFF = re.compile(r"^[^:]+: (false|null|off|none|0|0\.0)$", re.IGNORECASE)
_CLAUSE = re.compile(r"[;\n]|,\s|\.\s|\bbut\b|\bwhile\b|\bwhereas\b|\band\b(?=.{0,40}\b(fine|ok|fail|nan)\b)")


def read(case: Mapping[str, Any]) -> dict[str, Observation]:
    """Everything that the words of a case say; of its log, the words are messages, which `sources.logs` reads."""
    config = case.get("config")
    entries = cast("Mapping[str, Any]", config).items() if isinstance(config, Mapping) else ()
    settings = [f"{key}: {_plain(value)}"[:LONGEST] for key, value in entries]
    about = [str(case.get(key) or "")[:LONGEST] for key in ("framework", "title", "model", "hardware")]
    parts = [part for part in (*about, *settings) if part]
    found: dict[str, Observation] = {}
    for part in parts:
        for name in messages.kinds_in(part):
            found.setdefault(name, _quoted(name, part))
    found |= _matches(OFF, parts)
    found |= _matches(WRITTEN, [part for part in parts if not _SWITCHED_OFF.match(part)])
    for part in (about[1], about[3], *settings):
        found |= {name: _quoted(name, part) for name in _comparisons(part)}
    return {name: one for name, one in found.items() if name in meanings()}


def _matches(table: Mapping[str, re.Pattern[str]], parts: list[str]) -> dict[str, Observation]:
    """Of each observation the first part of the case that shows it."""
    shown = {name: next(filter(pattern.search, parts), None) for name, pattern in table.items()}
    return {name: _quoted(name, part) for name, part in shown.items() if part is not None}


def _comparisons(part: str) -> Iterator[str]:
    """`subject-works` and `subject-fails` of every clause; one without a subject speaks of the setting's name.

    "eager" is said of attention, and of a model that is not compiled.
    """
    name, _, value = part.partition(": ")
    other = "plain-attention" if SUBJECTS["compiled-code"].search(part) else "uncompiled"
    for clause in filter(str.strip, map(str, _CLAUSE.split(value or name))):
        verdict = _verdict(clause)
        if verdict is None:
            continue
        spoken_of = _subjects(clause) or (_subjects(f"{name}: {clause}") if value else [])
        turned = "no-" if _IS_OFF.match(clause) else ""
        yield from (f"{turned}{subject}-{verdict}" for subject in spoken_of if subject != other)


def _subjects(text: str) -> list[str]:
    return [subject for subject, pattern in SUBJECTS.items() if pattern.search(text)]


def _verdict(clause: str) -> str | None:
    """The first word that judges, turned round by a negation before it."""
    good, bad = _GOOD.search(clause), _BAD.search(clause)
    first = min((m for m in (good, bad) if m), key=lambda m: m.start(), default=None)
    if first is None:
        return None
    negated = _NOT.search(clause[: first.start()]) is not None
    return "works" if (first is good) != negated else "fails"


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def _quoted(name: str, part: str) -> Observation:
    """Short, on one line, without links: who pastes a thread pastes its traps."""
    text = " ".join(without_links(part, "(link)").split())
    return Observation(name=name, text=text if len(text) <= QUOTED else text[: QUOTED - 3] + "...", place="the case")
