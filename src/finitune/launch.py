"""`finitune run`: start the user's own command so that every Python process in it is watched."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finitune.finding import UnreadableInput
from finitune.injection import Injection
from finitune.recording import Recording, continued, new_directory
from finitune.shims import path_with_shims

STOPPED = 3
"""Exit code when finitune ended a run that it was guarding."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KERNEL = 0x80
"""`si_code` of a signal that the kernel sends, as for Ctrl-C in a terminal: the child has got it too."""
UNSEEN = "unseen"
"""In the folder of marks: how the run ended, where the process that says it writes to another stderr."""
FATAL = (signal.SIGABRT, signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


def run(
    command: Sequence[str], *, run_dir: str | Path | None = None, mode: str = "guard", inject: Sequence[str] = (),
    signals: str = "economy", watch_step: int | None = None, rerun: bool = False, skip_spikes: bool = False,
) -> int:  # fmt: skip
    """Run `command`, watched, and return its exit code; 3 when finitune stopped it.

    `watch_step` ends the run right after that step, which is seen operator by operator. `rerun` starts the command
    once more by itself where a bad step could not be located, with saves held back, to watch that step. With
    `skip_spikes` a finite step far above all that the run has shown is left out as well.
    Raises UnreadableInput for a command that cannot be started or an injection that cannot be read.
    """
    if not command or shutil.which(command[0]) is None:
        name = command[0] if command else "nothing after --"
        raise UnreadableInput(f"{name}: no such command (expected what you type to train, e.g. python train.py)")
    for fault in inject:
        Injection.parse(fault)
    directory = _directory(run_dir)
    settings = {
        "FINITUNE_MODE": mode,
        "FINITUNE_SIGNALS": signals,
        "FINITUNE_INJECT": json.dumps(list(inject)),
        "FINITUNE_SKIP_SPIKES": "1" if skip_spikes else "",
        "FINITUNE_WATCH_STEP": "" if watch_step is None else str(watch_step),
    }
    code, recorded, stopped = _once(command, directory, settings)
    if rerun and recorded is not None:
        _watch_again(command, recorded, settings)
    return STOPPED if stopped else code


def _once(command: Sequence[str], directory: Path, settings: Mapping[str, str]) -> tuple[int, Path | None, bool]:
    """The exit code, where the run was recorded, and whether finitune stopped it."""
    began = time.time()
    with tempfile.TemporaryDirectory(prefix="finitune-") as marks, path_with_shims(command) as path:
        environment = _environment(
            directory.resolve(), {**settings, "FINITUNE_MARKS": marks, "FINITUNE_STDERR": stderr_now(), "PATH": path}
        )
        code = _wait(subprocess.Popen(list(command), env=environment))
        if (unseen := Path(marks) / UNSEEN).exists():
            print(unseen.read_text(encoding="utf-8"), file=sys.stderr)
        recorded = _recorded(directory, began)
        if recorded is None:
            print(f"finitune: {_why_nothing(Path(marks))}", file=sys.stderr)
    with contextlib.suppress(OSError):
        directory.rmdir()  # nothing was recorded
    if recorded is None:
        return _shell_code(code), None, False
    recording = Recording.load(recorded)
    stopped = any(event.get("time", 0.0) >= began for event in recording.events("stop", "watched"))
    _note_the_end(recorded, recording, code, stopped=stopped)
    _diagnose_what_is_not(recorded, recording, began)
    return _shell_code(code), recorded, stopped


def stderr_now() -> str:
    """What tells the stderr of this process from another."""
    try:
        seen = os.fstat(2)
    except OSError:  # closed
        return ""
    return f"{seen.st_dev}:{seen.st_ino}"


def _directory(run_dir: str | Path | None) -> Path:
    directory = Path(run_dir) if run_dir else new_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UnreadableInput(f"--run-dir {directory}: {reason} (expected a directory to record in)") from None
    return directory


def _environment(directory: Path, settings: Mapping[str, str]) -> dict[str, str]:
    home = Path(__file__).parent
    paths = [str(home / "bootstrap"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "FINITUNE_RUN_DIR": str(directory),
        **settings,
    }


def _wait(child: subprocess.Popen[bytes]) -> int:
    """What the child returned, negative for a signal. Signals sent to this process alone are passed on to it."""
    if not hasattr(signal, "sigwaitinfo"):
        return _wait_plainly(child)
    # A parent that ignores these (nohup) has the child ignore them too: nothing is to be passed on.
    passed_on = {number for number in FORWARDED if signal.getsignal(number) != signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*passed_on, signal.SIGCHLD})
    try:
        while (code := child.poll()) is None:
            received = signal.sigtimedwait([*passed_on, signal.SIGCHLD], 1.0)
            if received is not None and received.si_signo in passed_on and received.si_code != KERNEL:
                child.send_signal(received.si_signo)
        return code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait_plainly(child: subprocess.Popen[bytes]) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue  # the terminal has sent it to the child as well, which ends in its own way


def _shell_code(code: int) -> int:
    """A death by signal is 128 + its number, as in a shell."""
    return code if code >= 0 else 128 - code


def _recorded(directory: Path, began: float) -> Path | None:
    """Where the run was recorded: in `directory`, or beside it where another run's recording lies there."""
    candidates = [directory, *sorted(directory.parent.glob(f"{directory.name}-*"))]
    places = [place for one in candidates for place in (one, *sorted(one.glob("process*")))]
    written = [place for place in places if any(f.stat().st_mtime >= began - 1 for f in place.glob("rank*.jsonl"))]
    return written[0] if written else None


def _why_nothing(marks: Path) -> str:
    """The true reason why no step was recorded, as far as the processes of the command could leave a mark."""
    if not (marks / "python").exists():
        return (
            "no training step was seen: no Python process of this command could be watched (started with -I, -E or -S, "
            "with PYTHONPATH replaced or the environment cleared, or no Python at all)"
        )
    if not (marks / "torch").exists():
        return "no training step was seen: no process of this command imported torch"
    if (marks / "compiled").exists():
        return (
            "no training step was seen: backward and step run within a function that torch.compile has compiled, where "
            "nothing is watched; compile the model alone, or the forward with the loss"
        )
    return "no training step was seen: no process of this command ran a backward or stepped an optimizer"


def _note_the_end(directory: Path, recording: Recording, code: int, *, stopped: bool) -> None:
    """Record how the command ended: a death by a signal is a crash, Ctrl-C and SIGTERM are notes."""
    recorder = continued(directory, rank=recording.ranks[0].rank, world=int(recording.header.get("world", 1) or 1))
    if recorder is None:
        return  # a process of the command still runs
    signals = recording.signals
    step = max((series.last_step for series in signals.values()), default=0)
    number = signal.Signals(-code) if code < 0 else None
    crashed = number in FATAL and not stopped
    try:
        recorder.event("exit", step=max(step, 0), code=code, signal=number.name if number else None)
        if crashed and number is not None:
            text = f"the program was ended by {number.name}"
            recorder.event(
                "incident", step=max(step, 0) + 1, id=recorder.earlier_incidents + 1, level="incident",
                symptom="crash", text=text, action="none", settles=False, last_good=max(step, 0),
            )  # fmt: skip
    finally:
        recorder.close()
    if crashed and number is not None:
        print(f"finitune: the program was ended by {number.name} after step {max(step, 0)}", file=sys.stderr)


def _diagnose_what_is_not(directory: Path, recording: Recording, began: float) -> None:
    """Where the command's own Python lacks what a diagnosis needs, it is made here."""
    if not any(event.get("time", 0.0) >= began for event in recording.events("undiagnosed")):
        return
    from rich.console import Console

    from finitune.diagnosis.recorded import diagnose
    from finitune.reports.terminal import print_diagnosis

    console = Console(file=sys.stderr, soft_wrap=True)
    print_diagnosis(diagnose(directory), console, run_dir=str(directory))


def _watch_again(command: Sequence[str], directory: Path, settings: Mapping[str, str]) -> None:
    """The command once more, up to the first bad step that was not located, which is watched."""
    recording = Recording.load(directory)
    located = {event.get("incident") for event in recording.events("origin") if _names_operator(event.get("origin"))}
    missing = [
        event for event in recording.events("incident")
        if event.get("id") not in located and str(event.get("symptom")).startswith(("nonfinite", "loss-scale"))
    ]  # fmt: skip
    if not missing:
        return
    incident = missing[0]
    again = directory / "rerun"
    print(f"finitune: step {incident['step']} was not located; the command runs again to watch it", file=sys.stderr)
    more = {"FINITUNE_WATCH_STEP": str(incident["step"]), "FINITUNE_RERUN": "1", **_TRACKERS_OFF}
    _once(command, again, {**settings, **more})
    try:
        seen = Recording.load(again)
    except FileNotFoundError:
        return
    found = [e for e in seen.events("origin") if e.get("origin") and e.get("step") == incident["step"]]
    recorder = continued(directory, rank=incident["rank"], world=int(recording.header.get("world", 1) or 1))
    if found and recorder is not None:
        fields: dict[str, Any] = {
            k: v for k, v in found[0].items() if k not in ("kind", "event", "step", "time", "incident", "rank")
        }
        recorder.event("origin", step=incident["step"], incident=incident["id"], **{**fields, "rerun": True})
        recorder.close()


def _names_operator(origin: Mapping[str, Any] | None) -> bool:
    """False where no more is known than the statement of the loop; see `finitune.finding.Origin.is_statement`."""
    return bool(origin) and not origin.get("op") == origin.get("phase") == "forward"


_TRACKERS_OFF = {
    "WANDB_MODE": "disabled", "MLFLOW_TRACKING_URI": "", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1", "TRACKIO_DISABLED": "1", "SWANLAB_MODE": "disabled",
}  # fmt: skip
