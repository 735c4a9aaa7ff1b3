"""`finitune repair`: apply a remedy to a copy of a model or of data."""

from __future__ import annotations

import click

from finitune.commands import console, output_format, print_json


@click.command
@click.argument("name")
@click.option("--model", metavar="DIR", help="Directory of the model to repair.")
@click.option("--data", metavar="FILE", help="Training data, for remedies that look at it or rewrite it.")
@click.option("--tokens", metavar="IDS", help="Token ids: 6,7,10-12. By default those that check finds.")
@click.option("--rows", metavar="IDS", help="Rows of the data. By default those that check finds.")
@click.option("--config", metavar="FILE", multiple=True, help="Configuration of the run; may be repeated.")
@click.option("--output", metavar="PATH", help="Where to write; inputs are never changed in place.")
@click.option("--seed", type=int, default=0, show_default=True, help="For remedies that draw random numbers.")
@output_format
def command(
    name: str,
    model: str | None,
    data: str | None,
    tokens: str | None,
    rows: str | None,
    config: tuple[str, ...],
    output: str | None,
    seed: int,
    form: str,
) -> None:
    """Write a repaired model or data set.

    NAME is the remedy, as check and diagnose name it.
    """
    from finitune.repairs import repair

    result = repair(
        name, model=model, data=data, tokens=tokens, rows=rows, config=list(config), output=output, seed=seed
    )
    if form == "json":
        print_json(result)
    else:
        from finitune.reports.terminal import print_repair

        print_repair(result, console())
