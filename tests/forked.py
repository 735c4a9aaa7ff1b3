"""A Python that has imported torch already: a script is run by a fork of it, as `python SCRIPT` would run it.

Most of what a short script takes is the import of torch. What is run by `finitune run` is started as a user starts it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from select import select
from threading import Lock

_ASKS = Lock()


class Forked:
    """A script that runs in a session of its own; the folder `place` is where it runs and keeps its output."""

    def __init__(
        self, words: Sequence[str], place: Path, env: Mapping[str, str] | None = None, imports: Sequence[str] = ()
    ) -> None:
        """`words` are what stands behind `python`, a script first; `env` is laid over the environment. The Python has
        imported these modules as well.
        """
        place.mkdir(parents=True, exist_ok=True)
        self.place, reports = place, place / "reports"
        os.mkfifo(reports)
        task = {"words": list(words), "place": str(place), "env": {**os.environ, **(env or {})}}
        with _ASKS:
            pipe = _server(tuple(imports)).stdin
            assert pipe is not None
            pipe.write(json.dumps(task) + "\n")
            pipe.flush()
        self._reports = reports.open(encoding="ascii")
        reports.unlink()
        self._group = int(self._reports.readline())

    def wait(self, timeout: float) -> int:
        """The exit code, -n where signal n ended it. Raises subprocess.TimeoutExpired after so many seconds."""
        if not select([self._reports], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.place), timeout)
        return int(self._reports.readline())

    def kill(self) -> None:
        """End it and all that it has started, where it has not ended. Nothing is heard of it afterwards."""
        self._reports.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._group, signal.SIGKILL)

    @property
    def stdout(self) -> str:
        return (self.place / "stdout.txt").read_text(encoding="utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        return (self.place / "stderr.txt").read_text(encoding="utf-8", errors="replace")


@cache
def _server(imports: Sequence[str]) -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, __file__, *imports],
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # which is read when torch is imported
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    atexit.register(server.kill)
    return server


def _serve() -> None:
    for name in ("torch._dynamo", *sys.argv[1:]):  # which the first optimizer imports
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that report
    for line in sys.stdin:
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            task = json.loads(line)
            reports = os.open(Path(task["place"]) / "reports", os.O_WRONLY)
            pid = os.fork()
            if not pid:
                os.close(reports)
                _become(**task)
                return  # and end, as the interpreter ends
            os.write(reports, b"%d\n" % pid)
            with contextlib.suppress(BrokenPipeError):  # where nobody waits for the end any more
                os.write(reports, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            os._exit(0)


def _become(words: list[str], place: str, env: dict[str, str]) -> None:
    os.setsid()
    os.chdir(place)
    os.environ.clear()
    os.environ.update(env)
    for number, name, how in (
        (0, os.devnull, os.O_RDONLY),
        (1, "stdout.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, "stderr.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        os.dup2(os.open(name, how, 0o644), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[:] = words
    sys.path[0] = str(Path(words[0]).parent)
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _serve()
