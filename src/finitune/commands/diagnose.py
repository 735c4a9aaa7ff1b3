"""`finitune diagnose`: why a run failed, with evidence."""

from __future__ import annotations

import click

from finitune.commands import console, exit_code, fail_on, output_format, print_json


@click.command
@click.argument("path", required=False)
@click.option("--case", "case", metavar="FILE", help="A case file (JSON) that tells about a run, instead of PATH.")
@click.option("--verbose", "-v", is_flag=True, help="Show every piece of evidence with its weight in bits.")
@output_format
@fail_on
def command(path: str | None, case: str | None, form: str, fail_on: str, *, verbose: bool) -> int:
    """Say why a run failed, with evidence.

    Names the first bad value, the cause and the cure of every incident recorded in PATH.
    """
    from finitune.casebook import diagnose_case
    from finitune.diagnosis import diagnose

    if path is None and case is None:
        raise click.UsageError("Missing argument 'PATH' (or --case FILE).")
    if path is not None and case is not None:
        raise click.UsageError("PATH and --case are two diagnoses; give one.")
    result = diagnose(path) if path is not None else diagnose_case(case or "")
    if form == "json":
        print_json(result)
    else:
        from finitune.reports.terminal import print_diagnosis

        print_diagnosis(result, console(), run_dir=path, verbose=verbose)
    return exit_code(("error" for _ in result.incidents), fail_on)
