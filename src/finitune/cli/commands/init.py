"""`finitune init`: write the file that `finitune train` reads."""

from __future__ import annotations

import shlex

import click


@click.command
@click.option("--model", metavar="DIR", required=True, help="Directory of the model to fine-tune.")
@click.option("--data", metavar="FILE", required=True, help="Training data: JSONL, JSON, Parquet, CSV or text.")
@click.option("--output", metavar="FILE", default="train.yaml", show_default=True, help="Where to write.")
def command(*, model: str, data: str, output: str) -> None:
    """Write a commented configuration for finitune train.

    What it leaves out is chosen by finitune train; nothing that is there is overwritten.
    """
    from finitune.train.starter import starter

    name = shlex.quote(str(starter(model, data, output)))
    click.echo(f"{output} is written. finitune train --plan {name} shows what it means, finitune train {name} trains.")
