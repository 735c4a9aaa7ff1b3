"""The recording: the directory a run leaves behind. Written by the training side, read by every other side.

`header.json` holds the facts, `rank00000.jsonl` one JSON object per line, appended as the run goes:

    {"kind": "open", "format": 1, "rank": 0, ...}
    {"kind": "step", "step": 31, "loss": 2.1, "grad_norm": "inf", "lr": 1e-4, "loss_scale": 65536.0}
    {"kind": "beside", "step": 31, "optimizer": "AdamW (optimizer 2)", ...}
    {"kind": "event", "event": "incident", "step": 31, ...}

Events: `incident`, `origin`, `arm`, `action`, `log`, `stop`, `end`, `broken` (a fault of finitune itself).
Every line goes to the operating system at once, so `kill -9` loses nothing; a line cut short is dropped by the reader.
When the disk is full, training goes on: rows are missing, which is said once, and later rows are whole again, after a
row {"kind": "gap", "rows": 12} that counts the missing ones. A reader believes nothing: files that are links out of the
directory, pipes or devices are left out, and so are lines that would not fit into the memory.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finitune.command_line import masked
from finitune.contained import contained
from finitune.finding import Printed, UnreadableInput, as_json
from finitune.recorded_rank import RANK_FILE, Rank, read_rank
from finitune.recorded_rows import FORMAT, read_header
from finitune.series import Series

if TYPE_CHECKING:
    from finitune.facts import Facts


def new_directory(stem: str = "") -> Path:
    """`runs/STEM<time>`, made here; with a number after it where another run began in the same second."""
    name = stem + time.strftime("%Y%m%d-%H%M%S")
    for count in itertools.count(1):
        directory = Path("runs") / (name if count == 1 else f"{name}-{count}")
        with contextlib.suppress(FileExistsError):
            directory.mkdir(parents=True)
            return directory
    raise AssertionError("unreachable")


def newest(runs: str | Path) -> Path | None:
    """The recording in a folder of runs that was written last."""
    files = [
        file for inner in ("*", "*/process*") for file in Path(runs).glob(f"{inner}/rank*.jsonl") if file.is_file()
    ]
    return max(files, key=lambda file: (file.stat().st_mtime_ns, str(file))).parent if files else None


class Recorder:
    """Appends to the recording of one rank. Nothing is made on the disk before there is something to record.

    A recording that is there already is continued by a resumed run, and never by another one, which goes beside it.
    """

    def __init__(self, directory: str | Path, *, rank: int = 0, world: int = 1) -> None:
        self.directory = Path(directory)
        self.rank = rank
        self.world = world
        self._earlier: Rank | None = None
        self._lock: FileIO | None = None
        self._torn = False
        self._lost = 0
        self._silent = False
        self._pid = os.getpid()
        self._file: FileIO | None = None
        self._closed = False
        self.is_second = False
        """Another process of the same command records a training, or has recorded one before."""

    @property
    def opened(self) -> bool:
        """Was anything recorded?"""
        return self._file is not None

    @property
    def captures(self) -> Path:
        return self.directory / "captures"

    @property
    def path(self) -> Path:
        return self.directory / f"rank{self.rank:05d}.jsonl"

    @property
    def earlier_incidents(self) -> int:
        """How many the recording held when it was opened."""
        return sum(event["event"] == "incident" for event in self._before().events)

    @property
    def earlier_skips(self) -> Series:
        """The series `skipped` that it held."""
        return self._before().signals["skipped"]

    def begin(self, step: int) -> None:
        """The first step that is recorded is `step`; a run that begins anew does not go into another run's recording.

        Says so where the recording goes elsewhere. A disk that cannot be written is said once.
        """
        if self._file is not None or self._closed:
            return
        asked, why, launch = self.directory, "", Path(os.environ.get("FINITUNE_MARKS", "")).name
        try:
            self._lock, self._earlier = _locked(asked, self.rank), None
            begun = step <= 1 and len(self._before().signals["skipped"]) > 0
            theirs = self._before().launch or (launch if self._lock is None else "")  # it has not written it yet
            self.is_second = (begun or self._lock is None) and bool(launch) and theirs == launch
            if self._lock is None or self.is_second:
                self.directory, why = asked / f"process{os.getpid()}", "another process records here"
            elif begun:
                self.directory, why = beside(asked, self.rank), "another run is recorded here"
            if why and self._lock is not None:
                self._lock.close()
            if why:
                self._lock, self._earlier = _locked(self.directory, self.rank), None
            self._before()
            self.captures.mkdir(parents=True, exist_ok=True)
            self._torn = _ends_in_half_a_line(self.path)
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            self._complain(error)
            return
        if why and not self.rank and not self.is_second:
            print(f"finitune: {asked}: {why}; this one in {self.directory}", file=sys.stderr)
        who = {"rank": self.rank, "world": self.world, "pid": os.getpid()}
        self._write({"kind": "open", "format": FORMAT, **who, **({"launch": launch} if launch else {})})

    def _before(self) -> Rank:
        if self._earlier is None:
            self._earlier = read_rank(self.path, [], refuse=False)
        return self._earlier

    def header(self, facts: Mapping[str, Any], **more: Any) -> None:
        """Write `header.json`; rank 0 only, by a temporary name and a rename. `facts` are JSON already."""
        if self.rank == 0:
            self.begin(0)
            if "command" in more:
                more["command"] = masked([str(word) for word in more["command"]])
            data = {"format": FORMAT, "facts": facts, **more}
            try:
                write_json(self.directory / "header.json", data)
            except OSError as error:
                self._complain(error)

    def step(self, step: int, **signals: float | None) -> None:
        """One row of signals; a value of None is left out. A second row of a step adds to the first."""
        self.begin(step)
        self._write({"kind": "step", "step": step, **{k: v for k, v in signals.items() if v is not None}})

    def beside(self, step: int, **fields: Any) -> None:
        """What a further optimizer measured in the same step: recorded, and part of no series."""
        self._write({"kind": "beside", "step": step, **{k: v for k, v in fields.items() if v is not None}})

    def event(self, event: str, *, step: int, **fields: Any) -> None:
        """One event, synced to the disk."""
        self.begin(step)
        self._write({"kind": "event", "event": event, "step": step, "time": time.time(), **fields})
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._file.fileno())

    def forked(self) -> None:
        """Go on as a fork of the process that recorded until now, which goes on by itself."""
        self._pid = os.getpid()
        self._file = self._lock = self._earlier = None

    def close(self) -> None:
        self._closed = True
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _write(self, row: Mapping[str, Any]) -> None:
        if self._file is None or os.getpid() != self._pid:
            return  # a forked child of the training is not the training
        rows = [{"kind": "gap", "rows": self._lost}, row] if self._lost else [row]
        lines = "".join(json.dumps(as_json(one), allow_nan=False, separators=(",", ":")) + "\n" for one in rows)
        data = ("\n" + lines if self._torn else lines).encode()
        try:
            written = self._file.write(data)
        except OSError as error:
            self._lost += 1
            self._torn = True
            self._complain(error)
            return
        self._torn = written != len(data)
        self._lost = self._lost + 1 if self._torn else 0

    def _complain(self, error: OSError) -> None:
        if not self._silent:
            reason = error.strerror or error
            print(f"finitune: {self.path}: {reason}; training goes on, the recording has gaps", file=sys.stderr)
        self._silent = True


def beside(directory: Path, rank: int = 0) -> Path:
    """`DIRECTORY-2`, `DIRECTORY-3`...: the first in which `rank` has not recorded, so that all ranks take the same."""
    names = (directory.with_name(f"{directory.name}-{count}") for count in itertools.count(2))
    return next(path for path in names if not (path / f"rank{rank:05d}.jsonl").exists())


def continued(directory: Path, *, rank: int, world: int) -> Recorder | None:
    """A recorder that adds to the recording of `rank`; None while the run itself still writes it.

    Raises UnreadableInput where one of its files is a link out of the directory, a pipe or a device.
    """
    name = f"rank{rank:05d}"
    for path in (directory / f"{name}.jsonl", directory / f".{name}.lock"):
        if path.exists() or path.is_symlink():
            try:
                contained(directory, path, expected="a file of the recording")
            except FileNotFoundError:
                raise UnreadableInput(f"{path}: leads nowhere (expected a file of the recording)") from None
    lock = _locked(directory, rank)
    if lock is None:
        return None
    lock.close()
    recorder = Recorder(directory, rank=rank, world=world)
    recorder.begin(2)  # it goes on with this recording, whatever it holds
    return recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording(Printed):
    """A recording as read back. `problems` says in words what could not be read."""

    directory: Path
    header: Mapping[str, Any]
    ranks: list[Rank]
    problems: list[str] = field(default_factory=list[str])

    @staticmethod
    def load(directory: str | Path) -> Recording:
        """Read a recording, finished or not, damaged or not.

        Raises FileNotFoundError when `directory` holds no recording at all, UnreadableInput for one that a later
        finitune wrote.
        """
        directory = Path(directory)
        problems: list[str] = []
        files = [path for path in sorted(directory.glob("rank*.jsonl")) if _is_readable(directory, path, problems)]
        if not files:
            why = "no recording here" if directory.exists() else "no such file or directory"
            raise FileNotFoundError(problems[0] if problems else f"{directory}: {why} (expected rank00000.jsonl)")
        return Recording(
            directory=directory,
            header=read_header(directory / "header.json", problems),
            ranks=[read_rank(path, problems, refuse=True) for path in files],
            problems=problems,
        )

    @property
    def facts(self) -> Facts:
        from finitune.facts import Facts
        from finitune.facts_json import facts_from_json

        facts = self.header.get("facts")
        return facts_from_json(facts) if isinstance(facts, Mapping) else Facts()  # pyright: ignore[reportUnknownArgumentType]

    @property
    def world(self) -> int:
        """How many ranks the run had, as it says; 1 where it does not."""
        world = self.header.get("world")
        return world if isinstance(world, int) and not isinstance(world, bool) and world > 0 else 1

    @property
    def signals(self) -> Mapping[str, Series]:
        """The signals of the lowest rank."""
        return self.ranks[0].signals

    def events(self, *names: str) -> list[Mapping[str, Any]]:
        """Events of all ranks, each with its `rank`, in order of rank and time; all of them without `names`."""
        return [
            {**event, "rank": rank.rank}
            for rank in self.ranks
            for event in rank.events
            if not names or event.get("event") in names
        ]


def write_json(path: Path, data: Any) -> None:
    """Strict JSON under a temporary name, then renamed: the file is whole or absent."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(as_json(data), allow_nan=False, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def _locked(directory: Path, rank: int) -> FileIO | None:
    """An open file that holds the recording of `rank` for this process; None when another process holds it.

    The lock is one of the process, so that a forked data loader that outlives it does not keep it. Where a file
    system knows no locks, there are none.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file = open(directory / f".rank{rank:05d}.lock", "ab", buffering=0, opener=_not_a_link)  # noqa: SIM115
    try:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.close()
        return None
    except (ImportError, OSError):
        pass
    return file


def _not_a_link(path: str, flags: int) -> int:
    """Opens for `open`; a link is an error, and so is a pipe that nobody reads, which would block."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def _is_readable(directory: Path, path: Path, problems: list[str]) -> bool:
    if not RANK_FILE.fullmatch(path.name):
        return False
    try:
        contained(directory, path, expected="the rows of a recording")
    except FileNotFoundError:
        return False
    except UnreadableInput as error:
        problems.append(str(error))
        return False
    return True


def _ends_in_half_a_line(path: Path) -> bool:
    """Whether an earlier crash cut the last line short, so that the next one must not be glued to it."""
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
