"""A folder of a run, as trackers and trainers leave it -> the log in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from finitune.sources.logs import mlflow

MOST_DEPTH = 4
MOST_ENTRIES = 20_000


def log_in(folder: Path) -> tuple[Path, int] | None:
    """The newest log of a tracker or trainer in a folder, and how many others there are; None where there is none.

    In this order: a run of MLflow, W&B's `.wandb`, `trainer_state.json`, event files of TensorBoard, a database of
    Trackio, W&B's `output.log`. No link is followed.
    """
    entries = _entries(folder)
    kinds: Sequence[Callable[[Path], bool]] = (
        mlflow.is_run,
        lambda path: path.suffix == ".wandb",
        lambda path: path.name == "trainer_state.json",
        lambda path: path.name.startswith("events.out.tfevents"),
        lambda path: path.suffix == ".db",
        lambda path: path.name == "output.log",
    )
    for kind in kinds:
        found = [path for path in entries if kind(path)]
        if found:
            return max(found, key=lambda path: (path.stat().st_mtime_ns, str(path))), len(found) - 1
    return None


def _entries(folder: Path) -> list[Path]:
    """The folder, and what lies in it and in folders below."""
    found = [folder]
    todo = [(folder, 0)]
    while todo and len(found) < MOST_ENTRIES:
        here, depth = todo.pop()
        try:
            inner = sorted(here.iterdir())
        except OSError:
            continue
        for path in inner:
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                continue
            found.append(path)
            if path.is_dir() and depth < MOST_DEPTH and path.name != "metrics":
                todo.append((path, depth + 1))
    return found
