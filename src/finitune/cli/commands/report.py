"""`finitune report`: a recorded run as one HTML page."""

from __future__ import annotations

import click


@click.command
@click.argument("run_dir", nargs=-1)
@click.option("--output", "-o", metavar="FILE", help="Where to write the page.  [default: RUN_DIR/report.html]")
def command(run_dir: tuple[str, ...], output: str | None) -> None:
    """Write one HTML page about a run.

    Without RUN_DIR it is the newest run under runs/; several are put side by side on one page. The page needs no
    network. Its path is printed.
    """
    from finitune.cli.commands import newest_run
    from finitune.show import report

    first, *others = run_dir or (newest_run("RUN_DIR"),)
    click.echo(report(first, output, beside=others))
