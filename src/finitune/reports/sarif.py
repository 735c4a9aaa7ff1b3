"""SARIF 2.1.0 of what `check` found, so that code hosts and editors show it at its place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import finitune
from finitune.chapter import Chapter, causes
from finitune.finding import CheckResult, Finding, Where, as_json
from finitune.reports import json

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

LEVELS = {"error": "error", "warning": "warning", "info": "note"}

MAX_SEARCHED_BYTES = 2**22
"""Configurations are smaller; in weights and data no key is looked for."""


def render(result: CheckResult) -> str:
    """The log of one run, strict JSON. Rules are the causes that found something; files are relative where they can."""
    names = sorted({finding.cause for finding in result.findings})
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "finitune",
                        "version": finitune.__version__,
                        "rules": [_rule(name, causes().get(name)) for name in names],
                    }
                },
                "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": _left_out(result)}],
                "results": [_result(finding, names.index(finding.cause)) for finding in result.findings],
                "columnKind": "unicodeCodePoints",
                "properties": {
                    "passed": list(result.passed),
                    "nothingToSay": list(result.nothing_to_say),
                    "notAsked": as_json(result.not_asked),
                },
            }
        ],
    }
    return json.render(log)


def _rule(name: str, chapter: Chapter | None) -> dict[str, Any]:
    rule: dict[str, Any] = {"id": name}
    if chapter is None:  # a cause of a third party that is not installed here
        return rule
    rule["shortDescription"] = {"text": chapter.title or name}
    if helps := chapter.sections.get("What to do"):
        rule["help"] = {"text": helps}
    if happens := chapter.sections.get("What happens"):
        rule["fullDescription"] = {"text": happens}
    return rule


def _result(finding: Finding, index: int) -> dict[str, Any]:
    message = finding.message
    if finding.remedy and finding.remedy.command:
        message += f"\nDo: {finding.remedy.command}"
    result: dict[str, Any] = {
        "ruleId": finding.cause,
        "ruleIndex": index,
        "level": LEVELS[finding.severity],
        "message": {"text": message},
        "properties": {"evidence": as_json(finding.evidence), "remedy": as_json(finding.remedy)},
    }
    lines = finding.evidence.get("launch_lines") or [1]
    location = _location(finding.where, cast("Sequence[int]", lines)[0])
    return {**result, "locations": [location]} if location else result


def _location(where: Where, start: int) -> dict[str, Any]:
    """The file with the line of the key, and the tensor or module as a logical place."""
    location: dict[str, Any] = {}
    file = _file(where.file)
    if file is not None:
        physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(file)}}
        line = _line(file, where.key, start) if where.line is None else where.line
        if line is not None and where.cell is None:  # lines of a cell are no lines of the file
            physical["region"] = {"startLine": line}
        location["physicalLocation"] = physical
    names: Mapping[str, str | None] = {"module": where.module, "member": where.tensor or where.key}
    if logical := [{"fullyQualifiedName": name, "kind": kind} for kind, name in names.items() if name]:
        location["logicalLocations"] = logical
    return location


def _file(said: str | None) -> Path | None:
    """A source may be a file with a key behind it, such as `ds.json: fp16`."""
    if said is None:
        return None
    file = Path(said)
    alone = Path(said.rpartition(": ")[0] or said)
    return alone if not file.exists() and alone.exists() else file


def _uri(file: Path) -> str:
    if not file.is_absolute():
        return quote(file.as_posix())
    try:
        return quote(file.relative_to(Path.cwd()).as_posix())
    except ValueError:
        return file.as_uri()


def _line(file: Path, key: str | None, start: int) -> int | None:
    """The first line from `start` on where the key is set, in JSON, YAML or as a flag."""
    if not key or not file.is_file() or file.stat().st_size > MAX_SEARCHED_BYTES:
        return None
    leaf = re.escape(key.rsplit(".", 1)[-1]).replace("_", "[-_]")
    pattern = re.compile(rf"(?<![\w.-])(--)?[\"']?{leaf}[\"']?(?=\s*[:=]|\s|$)")
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    numbered = list(enumerate(lines, start=1))
    return next((number for number, text in [*numbered[start - 1 :], *numbered] if pattern.search(text)), None)


def _left_out(result: CheckResult) -> list[dict[str, Any]]:
    return [
        {"level": "note", "message": {"text": f"not checked: {entry.input}: {entry.why}"}}
        for entry in result.not_checked
    ]
