"""Log files -> what was read of them, each by its format."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path

from finitune.finding import UnreadableInput
from finitune.sources.logs import console, folders, mlflow, tables, tensorboard, trackio, trainer_state, wandb
from finitune.sources.logs.attempt import LogReading
from finitune.sources.logs.parsed_log import ParsedLog
from finitune.sources.logs.printed_facts import facts_of
from finitune.sources.result import Track, untracked
from finitune.sources.text import reason

FORMATS = (tensorboard, wandb, trackio, trainer_state, tables)
SEVERAL = (trackio, tables)
"""Formats whose files may hold several runs, of which one can be named."""

LONGEST_PLACE = 4096
HEAD_BYTES = 64 * 2**10
GZIP = b"\x1f\x8b"
LEAST_UNPACKED, MOST_TIMES = 2**30, 100
"""A packed log is read up to this size, or this multiple of what it takes packed; logs shrink to a tenth or so."""


def read(*files: str | Path, track: Track = untracked) -> LogReading:
    """Read logs of one run, or the newest log in a folder; `track` shows how far the reading is.

    Of a file with several runs `FILE:RUN` is one. Raises UnreadableInput for a file that cannot be read.
    """
    short = len({Path(file).name for file in files}) == len(files)
    return _reading([_read(*run_in(file), Path(file).name if short else str(file), track) for file in files])


def run_in(place: str | Path) -> tuple[Path, str]:
    """The file, and the name of the run behind `FILE:`, "" where there is none."""
    path, text = Path(place), str(place)
    if not path.exists():
        for colon in re.finditer(":", text[:LONGEST_PLACE]):
            if Path(text[: colon.start()]).is_file():
                return Path(text[: colon.start()]), text[colon.end() :]
    return path, ""


def read_lines(lines: Iterable[str], name: str) -> LogReading:
    """Read text of a terminal that is already in memory; places are `name:LINE`.

    A line feed within one of `lines` begins a new line, as it would in a file.
    """
    log = ParsedLog(name)
    console.read(BytesIO("\n".join(lines).encode(errors="replace")), log)
    return _reading([log])


def _reading(files: Sequence[ParsedLog]) -> LogReading:
    messages = [message for log in files for message in log.messages]
    return LogReading(
        attempts=[attempt for log in files for attempt in log.attempts if attempt.traces],
        messages=messages,
        facts=facts_of(messages),
        not_checked=[why for log in files for why in log.left_out()],
    )


def _read(path: Path, run: str, name: str, track: Track) -> ParsedLog:
    if path.is_dir():
        return _of_folder(path, track)
    log = ParsedLog(name)
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            for module in FORMATS:
                if module.recognises(head):
                    if module in SEVERAL:
                        module.read(path, log, run)
                    else:
                        _refuse(path, run)
                        module.read(path, log)
                    return log
            _refuse(path, run)
            file.seek(0)
            if head.startswith(GZIP):
                with gzip.open(file) as unpacked:
                    most = max(LEAST_UNPACKED, MOST_TIMES * path.stat().st_size)
                    console.read(unpacked, log, most=most, track=track)  # pyright: ignore[reportArgumentType]
                if log.cut and not log.rows and not log.messages:
                    raise UnreadableInput(f"{path}: {log.cut}, and it has no line about training (expected a log)")
            else:
                console.read(file, log, size=path.stat().st_size, track=track)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        if not log.rows and not log.messages:
            raise UnreadableInput(f"{path}: damaged gzip ({error})") from None
        log.cut = "damaged gzip; the lines before the damage were read"
    except OSError as error:
        raise UnreadableInput(f"{path}: {reason(error)} (expected a log)") from None
    return log


def _refuse(path: Path, run: str) -> None:
    if run:
        raise UnreadableInput(f"{path}: the log of one run (expected it without :{run})")


def _of_folder(folder: Path, track: Track) -> ParsedLog:
    """The newest log of a tracker or trainer in a folder; that there are others is said."""
    found = folders.log_in(folder)
    if found is None:
        raise UnreadableInput(f"{folder}: no recording and no log here (expected one of a tracker or trainer)")
    path, others = found
    if path.is_dir():
        log = ParsedLog(path.name)
        mlflow.read(path, log)
    else:
        log = _read(path, "", path.name, track)
    if others:
        log.cut = log.cut or f"the newest of {others + 1} logs in {folder}; the others were not read"
    return log
