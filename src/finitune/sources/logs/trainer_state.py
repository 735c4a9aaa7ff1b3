"""`trainer_state.json` of HF Trainer: `log_history`, one record per logging step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from finitune.finding import UnreadableInput
from finitune.sources.logs.names import SUMMARY, of_policies, signal_of
from finitune.sources.logs.parsed_log import ParsedLog
from finitune.sources.text import json_of

MOST_BYTES = 512 * 2**20


def recognises(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and (b'"log_history"' in head or b'"best_model_checkpoint"' in head)


def read(path: Path, log: ParsedLog) -> None:
    """Lines are those of the key `step` of each record in the file.

    Raises UnreadableInput for text that is not JSON or has no log history.
    """
    state = json_of(path, limit=MOST_BYTES)
    history = cast(Mapping[str, Any], state).get("log_history") if isinstance(state, Mapping) else None
    if not isinstance(history, list):
        raise UnreadableInput(f"{path}: expected a list under log_history")
    lines = _lines(path)
    for index, record in enumerate(cast(list[Any], history)):
        if not isinstance(record, Mapping):
            continue
        given = {str(key): value for key, value in cast(Mapping[Any, Any], record).items()}
        if SUMMARY in given:
            continue
        named = ((signal_of(key), _real(value)) for key, value in given.items())
        values = {name: value for name, value in named if name and value is not None}
        step = given.get("step")
        if values.keys() & {"loss", "eval_loss"}:
            line = lines[index] if index < len(lines) else 0
            whole = step if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**62 else None
            log.row(values, line, step=whole, epoch=None)
        if any(map(of_policies, given)):
            log.attempt.rewards = True


def _real(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _lines(path: Path) -> list[int]:
    """Where each record of the history begins; exact for the layout that json.dump with an indent writes."""
    out: list[int] = []
    inside = False
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        text = line.strip()
        inside = inside or text.startswith(b'"log_history"')
        if inside and text.startswith(b"{"):
            out.append(number)
    return out
