"""`finitune.report`: the diagnosis of a recording, rendered as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from finitune.diagnosis.recorded import diagnose
from finitune.diagnosis.side_by_side import compare
from finitune.reports import compared
from finitune.reports import report as render
from finitune.sources.logs.files import run_in


def report(run_dir: str | Path, output: str | Path | None = None, *, beside: Sequence[str | Path] = ()) -> Path:
    """Write the HTML report of the recording in `run_dir`, by default to `RUN_DIR/report.html`; return its path.

    With others `beside` it the runs stand side by side on one page, by default `RUN_DIR/comparison.html`; of runs of a
    file, as FILE:RUN, it lies beside the file. Raises
    FileNotFoundError when there is no recording, UnreadableInput when jinja2 or matplotlib is not installed.

    For instance: `finitune.report("runs/0815")`.
    """
    if beside:
        file, run = run_in(run_dir)
        return compared(file.parent if run else run_dir, output, compare(run_dir, *beside))
    return Path(render(run_dir, output, diagnosis=diagnose(run_dir)))
