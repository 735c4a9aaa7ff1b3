"""A second pytest process that runs single tests on request and sends back their outcome."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

PLUGIN = "one test on request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`outcome` is passed, failed or skipped; `text` says why it is not passed."""

    outcome: str
    text: str = ""


class OtherProcess:
    """Started by the first test that is run in it, and again after one that ended it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: Any = None
        self._connection: Any = None

    def run(self, nodeid: str) -> Outcome:
        if self._process is None:
            self._start()
        try:
            self._connection.send(nodeid)
            return self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            code, self._process = self._process.exitcode, None
            return Outcome(outcome="failed", text=f"the process in which the test ran ended with code {code}")
        except BaseException:
            self.close()  # a time-out: what it runs is nobody's business any more
            raise

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, str(self._directory)))
        self._process.start()
        theirs.close()


def _serve(connection: Connection, directory: str) -> None:
    # Time is kept by the process that asks.
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0"]
    pytest.main([directory, *options], plugins=[_Server(connection)])


class _Server:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(object(), PLUGIN)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        while True:
            try:
                nodeid = self._connection.recv()
            except EOFError:
                return True
            reports = runtestprotocol(items[nodeid], log=False, nextitem=None)
            worst = next((report for report in reports if report.outcome != "passed"), None)
            text = "" if worst is None else worst.longreprtext
            self._connection.send(Outcome(outcome=worst.outcome if worst else "passed", text=text))
