"""The folder of a run of MLflow: `metrics/NAME`, a text file for each metric with lines of time, value and step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from finitune.sources.logs.metrics import MOST_STEPS, Metrics
from finitune.sources.logs.names import signal_of
from finitune.sources.logs.parsed_log import ParsedLog, number_in

LONGEST_LINE = 200


def is_run(folder: Path) -> bool:
    return (folder / "metrics").is_dir() and (folder / "meta.yaml").is_file()


def read(folder: Path, log: ParsedLog) -> None:
    """The line of a value is that in its file."""
    metrics = Metrics(log)
    for file in _files(folder / "metrics"):
        tag = file.relative_to(folder / "metrics").as_posix()
        with file.open("rb") as lines:
            for number in range(1, MOST_STEPS + 1):
                words = lines.readline(LONGEST_LINE).split()
                if not words:
                    break
                value = number_in(words[1]) if len(words) == 3 else None
                if value is None or not words[2].isdigit() or not metrics.add(int(words[2][:18]), tag, value, number):
                    break
    metrics.write()


def _files(folder: Path) -> Iterator[Path]:
    """Of the metrics that say something; a tag with a slash is a file in a folder."""
    for file in sorted(folder.glob("*")) + sorted(folder.glob("*/*")):
        tag = file.relative_to(folder).as_posix()
        if file.is_file() and not file.is_symlink() and signal_of(tag):
            yield file
