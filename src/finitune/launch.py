"""`finitune run`: start the user's own command so that every Python process in it is watched."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from finitune.finding import UnreadableInput
from finitune.injection import Injection
from finitune.recording import Recording, new_directory

STOPPED = 3
"""Exit code when finitune ended a run that it was guarding."""


def run(
    command: Sequence[str], *, run_dir: str | Path | None = None, mode: str = "guard", inject: Sequence[str] = ()
) -> int:
    """Run `command`, watched, and return its exit code; 3 when finitune stopped it.

    Raises UnreadableInput for a command that cannot be started or an injection that cannot be read.
    """
    if not command or shutil.which(command[0]) is None:
        name = command[0] if command else "nothing after --"
        raise UnreadableInput(f"{name}: no such command (expected what you type to train, e.g. python train.py)")
    for fault in inject:
        Injection.parse(fault)
    directory = Path(run_dir) if run_dir else new_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UnreadableInput(f"--run-dir {directory}: {reason} (expected a directory to record in)") from None
    began = time.time()
    code = _wait(subprocess.Popen(list(command), env=_environment(directory.resolve(), mode, inject)))
    return STOPPED if _was_stopped(directory, began) else code


def _environment(directory: Path, mode: str, inject: Sequence[str]) -> dict[str, str]:
    home = Path(__file__).parent
    paths = [str(home / "bootstrap"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "FINITUNE_RUN_DIR": str(directory),
        "FINITUNE_MODE": mode,
        "FINITUNE_INJECT": json.dumps(list(inject)),
    }


def _wait(child: subprocess.Popen[bytes]) -> int:
    """The child's exit code; signals sent to us reach it, and a death by signal is 128 + its number, as in a shell."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    while True:
        try:
            code = child.wait()
        except KeyboardInterrupt:
            continue  # the terminal has sent it to the child as well, which ends in its own way
        return code if code >= 0 else 128 - code


def _was_stopped(directory: Path, began: float) -> bool:
    try:
        recording = Recording.load(directory)
    except FileNotFoundError:
        print("finitune: no training step was seen: no process of this command made a torch optimizer", file=sys.stderr)
        return False
    return any(event.get("time", 0.0) >= began for event in recording.events("stop"))
