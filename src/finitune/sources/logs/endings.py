"""The end of a log: whether the program died there, of an exception of its own or by a signal."""

from __future__ import annotations

import re

from finitune.sources.logs.parsed_log import ParsedLog

LAST_LINES = 60
"""Launchers print a summary of so many lines behind what a rank died of."""

_RAISED = re.compile(
    rb"^\W{0,4}(?:\[?rank\d+\]?:\s*)?((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Exhausted)|NCCLError))(: .*)?$"
)
"""The last line of a traceback."""
_KILLED = re.compile(
    rb"^(?:.*: line \d+:\s+\d+ )?(Killed|Segmentation fault|Bus error|Aborted)\b|oom[-_ ]kill|Exited with exit code 137"
    rb"|died with <Signals\.(?!SIGINT|SIGTERM)\w+|Signal \d+ \(SIG(?!INT|TERM)\w+\) received"
    rb"|^slurmstepd: error: .*CANCELLED AT \S+ DUE TO "
    rb"|Watchdog caught collective operation timeout|^terminate called after throwing"
)
_TITLE = b"Traceback (most recent call last)"
_OF_A_LAUNCHER = (b"ChildFailedError", b"CalledProcessError")


def read(ending: bytes, line: int, log: ParsedLog) -> None:
    """Note what the program died of; `ending` begins with line number `line`."""
    lines = ending.rstrip().split(b"\n")
    for at in range(max(0, len(lines) - LAST_LINES), len(lines)):
        text = lines[at].rstrip(b"\r").strip()
        raised = _RAISED.match(text)
        explains = raised and (_TITLE in ending or b"." in raised[1] or b"rror: " in text)
        if (explains and not any(name in text for name in _OF_A_LAUNCHER)) or _KILLED.search(text):
            log.message("crash", text.decode(errors="replace").strip(), line + at)
            return
