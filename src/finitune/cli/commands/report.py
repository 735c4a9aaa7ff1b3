"""`finitune report`: a recorded run as one HTML page."""

from __future__ import annotations

import click


@click.command
@click.argument("run_dir")
@click.option("--output", "-o", metavar="FILE", help="Where to write the page.  [default: RUN_DIR/report.html]")
def command(run_dir: str, output: str | None) -> None:
    """Write one HTML page about a run.

    The page needs no network. Its path is printed.
    """
    from finitune.show import report

    click.echo(report(run_dir, output))
