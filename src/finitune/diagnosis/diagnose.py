"""`finitune.diagnose`: why a run failed, from its recording, its logs, or a case that somebody writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finitune.diagnosis import cases, recorded
from finitune.diagnosis.logged import incidents
from finitune.diagnosis.side_by_side import Comparison, compare
from finitune.finding import Diagnosis, UnreadableInput
from finitune.sources.gather import Config
from finitune.sources.logs.files import run_in
from finitune.sources.logs.folders import log_in
from finitune.sources.result import Track, untracked


def diagnose(
    *paths: str | Path,
    case: str | Path | Mapping[str, Any] | None = None,
    configs: Sequence[Config] = (),
    model: str | Path | None = None,
    data: str | Path | None = None,
    gpu: str | None = None,
    requirements: str | Path | None = None,
    track: Track = untracked,
) -> Diagnosis | Comparison:
    """The incidents of one recording (a directory), of the logs of one run with what lies beside them, or of a case.

    `case` is a file (JSON) or a mapping with some of the keys framework, model, hardware, title, log, config. It is a
    Diagnosis; of several directories, or runs of a file as FILE:RUN, which are several runs, a Comparison of them.

    Raises UnreadableInput for a path that is neither, or for a case beside paths; FileNotFoundError for a directory
    without a recording.

    For instance: `print(finitune.diagnose("runs/0815"))`, or `finitune.diagnose("train.log", configs=["run_sft.sh"])`.
    """
    beside = configs or model or data or gpu or requirements
    if case is not None:
        if paths or beside:
            raise UnreadableInput("case: it holds the facts of its run (expected nothing beside it)")
        return cases.diagnose_case(case)
    for path, _ in map(run_in, paths):
        if not path.is_file() and not path.is_dir():
            found = "a pipe or a device" if path.exists() else "no such file or directory"
            raise UnreadableInput(f"{path}: {found} (expected a recording or a log)")
    if are_runs(*paths):
        if beside:
            raise UnreadableInput(f"{paths[0]}: several runs are only compared (expected nothing beside them)")
        return compare(*paths)
    if not is_recording(*paths):
        return incidents.diagnose_logs(
            *paths, configs=configs, model=model, data=data, gpu=gpu, requirements=requirements, track=track
        )
    if beside:
        raise UnreadableInput(f"{paths[0]}: a recording holds the facts of its run (expected nothing beside it)")
    return recorded.diagnose(paths[0])


def are_runs(*paths: str | Path) -> bool:
    """Several directories are several runs, and so are runs of a file, FILE:RUN; several files are the logs of one."""
    return len(paths) > 1 and all(Path(path).is_dir() or run_in(path)[1] for path in paths)


def is_recording(*paths: str | Path) -> bool:
    """One directory is a recording, unless there is only the log of a tracker in it; the rest are logs."""
    if len(paths) != 1 or not Path(paths[0]).is_dir():
        return False
    folder = Path(paths[0])
    return any(folder.glob("rank*.jsonl")) or log_in(folder) is None
