"""The verbs of the command line, one file each; a file holds one click command, called `command`.

What several verbs share is here. Imports of the working parts are inside the functions, so that `--help` is fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

output_format = click.option(
    "--format", "form", type=click.Choice(["terminal", "json"]), default="terminal", show_default=True
)
RUNS = "runs"
"""Where `finitune run` records."""

fail_on = click.option(
    "--fail-on", type=click.Choice(["error", "warning", "info", "never"]), default="error", show_default=True,
    help="Exit with 1 when something at least this severe was found.",
)  # fmt: skip


def console() -> Console:
    """Standard output as rich sees it; text is never read as markup."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def print_json(value: Any) -> None:
    from finitune.reports import json

    click.echo(json.render(value))


def exit_code(severities: Iterable[str], threshold: str) -> int:
    """1 when a severity is at or above the threshold."""
    order = ("error", "warning", "info")
    failing = order[: order.index(threshold) + 1] if threshold in order else ()
    return int(any(severity in failing for severity in severities))


def print_chapter(heading: str, text: str) -> None:
    """A chapter of the book: laid out for a terminal, else as Markdown."""
    out = console()
    if not out.is_terminal:
        click.echo(f"# {heading}\n\n{text}")
        return
    from rich.markdown import Markdown
    from rich.theme import Theme

    out.push_theme(Theme({"markdown.h2": "bold", "markdown.code": "bold", "markdown.item.bullet": "none"}))
    out.print(f"{heading}\n", style="bold")
    out.print(Markdown(text), width=min(out.width, 100))


def newest_run(what: str) -> str:
    """The run under runs/ that was recorded last, said on stderr. Raises UsageError where there is none."""
    from finitune.recording import newest

    found = newest(RUNS)
    if found is None:
        raise click.UsageError(f"Missing argument '{what}': no run is recorded under {RUNS}/ here.")
    click.echo(f"finitune: {found}, the newest run", err=True)
    return str(found)


def closest(name: str, known: Iterable[str]) -> str:
    """`; did you mean a, b?`, or what there is; empty when there is nothing."""
    import difflib

    names = sorted(known)
    near = difflib.get_close_matches(name, names, 3, 0.5)
    if near:
        return f"; did you mean {', '.join(near)}?"
    return f"; there are {', '.join(names)}" if names else ""
