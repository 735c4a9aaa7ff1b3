"""`finitune.report`: the diagnosis of a recording, rendered as one HTML page."""

from __future__ import annotations

from pathlib import Path

from finitune.diagnosis.recorded import diagnose
from finitune.reports import report as render


def report(run_dir: str | Path, output: str | Path | None = None) -> Path:
    """Write the HTML report of the recording in `run_dir`, by default to `RUN_DIR/report.html`; return its path.

    Raises FileNotFoundError when there is no recording, UnreadableInput when jinja2 or matplotlib is not installed.
    """
    return Path(render(run_dir, output, diagnosis=diagnose(run_dir)))
