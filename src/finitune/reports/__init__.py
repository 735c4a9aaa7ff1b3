"""Reports: renderings of findings, diagnoses and recordings. They read; they never measure and never judge."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Literal

from finitune.finding import Diagnosis, UnreadableInput
from finitune.recording import Recording
from finitune.reports import json

Format = Literal["html", "json"]


def report(
    run_dir: str | Path, output: str | Path | None = None, format: Format = "html", *, diagnosis: Diagnosis
) -> Path | str:
    """Render a recording and its diagnosis.

    With `output`, or for HTML (then by default `RUN_DIR/report.html`), the file is written and its path returned;
    otherwise the text is returned. Raises FileNotFoundError when there is no recording, and UnreadableInput when
    the packages for HTML are not installed or the file cannot be written.
    """
    if format == "html":
        text = _page("run", Recording.load(run_dir), diagnosis)
        output = Path(run_dir) / "report.html" if output is None else output
    else:
        text = json.render(diagnosis)
    return text if output is None else _written(run_dir, text, output)


def compared(run_dir: str | Path, output: str | Path | None, comparison: object) -> Path:
    """The page of several runs, by default in the directory of the first. Raises UnreadableInput as `report` does."""
    return _written(run_dir, _page("comparison", comparison), output or Path(run_dir) / "comparison.html")


def _written(run_dir: str | Path, text: str, output: str | Path) -> Path:
    try:
        _write(Path(run_dir), Path(output), text)
    except OSError as error:
        raise UnreadableInput(f"{output}: cannot write the report ({error.strerror})") from error
    return Path(output)


def _write(run_dir: Path, output: Path, text: str) -> None:
    """In the directory of a recording a link, which may lead anywhere, is replaced, and what it leads to is kept."""
    if not output.parent.resolve().is_relative_to(run_dir.resolve()):
        output.write_text(text, encoding="utf-8", errors="backslashreplace")
        return
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)


def _page(kind: str, *read: object) -> str:
    """The HTML of `reports.KIND_page`. Raises UnreadableInput where the packages for HTML are not installed."""
    try:
        found = importlib.import_module(f"finitune.reports.{kind}_page")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("jinja2", "markupsafe", "matplotlib"):
            raise
        raise UnreadableInput("finitune report needs jinja2 and matplotlib: pip install 'finitune[report]'") from error
    return str(found.page(*read))
