"""Logs: what a run printed, or left behind in files -> signals, messages and facts, each with its line.

A file is known by its content. `trainer_state`, `tables` and `tensorboard` each read a kind of file, by
`recognises(head) -> bool` and `read(path, notes)`; everything else is text from a terminal, read by `console`.
Nothing of a log is ever followed.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path

from finitune.facts import Facts, Hardware, Parallel, Precision, Quantization, Training
from finitune.finding import UnreadableInput
from finitune.sources import hardware
from finitune.sources.logs import console, tables, tensorboard, trainer_state
from finitune.sources.logs.attempt import Attempt, LogReading, Notes, Said
from finitune.sources.logs.banners import TRIED
from finitune.sources.result import Track, untracked
from finitune.sources.text import reason

FORMATS = (tensorboard, trainer_state, tables)
HEAD_BYTES = 64 * 2**10
GZIP = b"\x1f\x8b"
LEAST_UNPACKED, MOST_TIMES = 2**30, 100
"""A packed log is read up to this size, or this multiple of what it takes packed; logs shrink to a tenth or so."""


def read(*files: str | Path, track: Track = untracked) -> LogReading:
    """Read logs of one run; `track` shows how far the reading is.

    Raises UnreadableInput for a file that cannot be read.
    """
    short = len({Path(file).name for file in files}) == len(files)
    return _reading([_read(Path(file), Path(file).name if short else str(file), track) for file in files])


def read_lines(lines: Iterable[str], name: str) -> LogReading:
    """Read text of a terminal that is already in memory; places are `name:LINE`.

    A line feed within one of `lines` begins a new line, as it would in a file.
    """
    notes = Notes(name)
    console.read(BytesIO("\n".join(lines).encode(errors="replace")), notes)
    return _reading([notes])


def _reading(notes: Sequence[Notes]) -> LogReading:
    attempts = [attempt for one in notes for attempt in one.attempts if attempt.traces]
    said = [said for one in notes for said in one.said]
    left_out = [why for one in notes for why in one.left_out()]
    return LogReading(attempts=attempts, said=said, facts=facts_of(said), not_checked=left_out)


def _read(path: Path, name: str, track: Track) -> Notes:
    notes = Notes(name)
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            for module in FORMATS:
                if module.recognises(head):
                    module.read(path, notes)
                    return notes
            file.seek(0)
            if head.startswith(GZIP):
                with gzip.open(file) as unpacked:
                    most = max(LEAST_UNPACKED, MOST_TIMES * path.stat().st_size)
                    console.read(unpacked, notes, most=most, track=track)  # pyright: ignore[reportArgumentType]
                if notes.cut and not notes.rows and not notes.said:
                    raise UnreadableInput(f"{path}: {notes.cut}, and no line of it tells of training (expected a log)")
            else:
                console.read(file, notes, size=path.stat().st_size, track=track)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        if not notes.rows and not notes.said:
            raise UnreadableInput(f"{path}: damaged gzip ({error})") from None
        notes.cut = "damaged gzip; the lines before the damage were read"
    except OSError as error:
        raise UnreadableInput(f"{path}: {reason(error)} (expected a log)") from None
    return notes


def facts_of(said: Sequence[Said]) -> Facts:
    """What the log prints of versions, dtypes, card and engine; None where it is silent or contradicts itself."""
    by_kind: dict[str, list[Said]] = {}
    for one in said:
        by_kind.setdefault(one.kind, []).append(one)
    versions = {name.lower().replace("pytorch", "torch"): v for one in by_kind.get("version", ())
                for name, _, v in [one.text.partition(" ")] if v}  # fmt: skip
    half = by_kind.get("float16") or by_kind.get("overflow", [])
    brain = by_kind.get("bfloat16")
    spoken = half if half and not brain else brain if brain and not half else None
    precision = None
    if spoken:
        scaler = "dynamic" if spoken is half else "none"
        compute = "float16" if spoken is half else "bfloat16"
        precision = Precision(compute=compute, scaler=scaler, source=spoken[0].place)
    stage = _first(by_kind.get("zero-stage"))
    parallel = None
    if "deepspeed" in by_kind or "overflow" in by_kind or stage:
        overlap = _first(by_kind.get("overlap"))
        parallel = Parallel(
            kind="deepspeed", zero_stage=int(stage) if stage else None,
            overlap_comm=None if overlap is None else overlap.lower() == "true",
        )  # fmt: skip
    bits = 8 if "8-bit" in by_kind else 4 if "4-bit" in by_kind else None
    return Facts(
        precision=precision,
        parallel=parallel,
        versions=versions or None,
        hardware=_card(_first(by_kind.get("card"))),
        quantization=Quantization(bits=bits) if bits else None,
        training=Training(framework="ludwig") if "nonfinite-parameter" in by_kind else None,
    )


def _first(said: Sequence[Said] | None) -> str | None:
    return said[0].text if said else None


def _card(name: str | None) -> Hardware | None:
    if name is None:
        return None
    try:
        return hardware.read(name)
    except UnreadableInput:
        return None


__all__ = ["TRIED", "Attempt", "LogReading", "Said", "facts_of", "read", "read_lines"]
