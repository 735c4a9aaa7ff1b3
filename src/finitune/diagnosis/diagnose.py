"""`finitune.diagnose`: why a run failed, from its recording or from the logs that it left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from finitune.diagnosis import ranking
from finitune.diagnosis.logged import verdict
from finitune.finding import Diagnosis, UnreadableInput
from finitune.sources.gather import Config
from finitune.sources.result import Track, untracked


def diagnose(
    *paths: str | Path,
    configs: Sequence[Config] = (),
    model: str | Path | None = None,
    data: str | Path | None = None,
    gpu: str | None = None,
    requirements: str | Path | None = None,
    track: Track = untracked,
) -> Diagnosis:
    """The incidents of one recording (a directory), or of several logs of one run with what lies beside them.

    Raises UnreadableInput for a path that is neither, FileNotFoundError for a directory without a recording.
    """
    for path in map(Path, paths):
        if not path.is_file() and not path.is_dir():
            found = "a pipe or a device" if path.exists() else "no such file or directory"
            raise UnreadableInput(f"{path}: {found} (expected a recording or a log)")
    if not is_recording(*paths):
        return verdict.diagnose_logs(
            *paths, configs=configs, model=model, data=data, gpu=gpu, requirements=requirements, track=track
        )
    if configs or model or data or gpu or requirements:
        raise UnreadableInput(f"{paths[0]}: a recording holds the facts of its run (expected nothing beside it)")
    return ranking.diagnose(paths[0])


def is_recording(*paths: str | Path) -> bool:
    """One directory is a recording; anything else is taken for logs."""
    return len(paths) == 1 and Path(paths[0]).is_dir()
