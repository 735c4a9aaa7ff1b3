"""`finitune repair`: apply a remedy that rewrites files, or change the settings that check found."""

from __future__ import annotations

import click

import finitune
from finitune.cli.commands import console, output_format, print_json


@click.command
@click.argument("name", required=False)
@click.option("--model", metavar="DIR", help="Directory of the model to repair.")
@click.option("--data", metavar="FILE", help="Training data, for remedies that look at it or rewrite it.")
@click.option("--tokens", metavar="IDS", help="Token ids: 6,7,10-12. By default those that check finds.")
@click.option("--like", metavar="IDS", help="A related, trained token for each of --tokens, in the same order.")
@click.option("--rows", metavar="IDS", help="Rows of the data. By default those that check finds.")
@click.option("--dtype", metavar="DTYPE", help="For casts: float32, float16, bfloat16 or float64.")
@click.option("--modules", metavar="NAMES", help="For casts: modules or patterns with *, divided by commas.")
@click.option("--config", metavar="FILE", multiple=True, help="Configuration of the run; may be repeated.")
@click.option("--gpu", metavar="NAME", help="Accelerator of the run, as for check.")
@click.option("--requirements", metavar="FILE", help="Versions of the run, as for check.")
@click.option("--patch", is_flag=True, help="Print the change of the configuration as a diff; write nothing.")
@click.option("--apply", is_flag=True, help="Patch the configuration; the original is kept beside it.")
@click.option("--unsafe", is_flag=True, help="Without NAME: also take patches that are not safe by themselves.")
@click.option("--undo", metavar="PATH", help="Take back the repair of a file or directory, if nobody touched it since.")
@click.option("--output", metavar="PATH", help="Where to write a copy; models and data are never changed in place.")
@click.option(
    "--from", "from_run", metavar="RUN_DIR", help="What healed this run, as a patch for --config or as advice."
)
@click.option("--seed", type=int, default=0, show_default=True, help="For remedies that draw random numbers.")
@output_format
def command(
    *,
    name: str | None,
    model: str | None,
    data: str | None,
    tokens: str | None,
    like: str | None,
    rows: str | None,
    dtype: str | None,
    modules: str | None,
    config: tuple[str, ...],
    gpu: str | None,
    requirements: str | None,
    patch: bool,
    apply: bool,
    unsafe: bool,
    undo: str | None,
    output: str | None,
    from_run: str | None,
    seed: int,
    form: str,
) -> None:
    """Write a repaired model or data set, or patch settings.

    NAME is the remedy, as check and diagnose name it. Without it the safe patches of check's errors and warnings are
    taken, or with --from what healed a run; finitune remedies says what safe, unsafe and advice mean.

    For instance: finitune repair --config run_sft.sh --gpu V100 --patch
    """
    if undo is not None:
        if name or patch or apply or output or from_run:
            raise click.UsageError("--undo stands alone.")
        from finitune.repairs.undoing import undo as take_back

        result = take_back(undo)
    elif name is None and not (config or model or from_run):
        raise click.UsageError("Nothing to repair: name a remedy, or --config with --patch or --apply.")
    else:
        result = finitune.repair(
            name, model=model, data=data, tokens=tokens, rows=rows, config=list(config), output=output, seed=seed,
            gpu=gpu, requirements=requirements, patch=patch, apply=apply, like=like, dtype=dtype, modules=modules,
            unsafe=unsafe, from_run=from_run,
        )  # fmt: skip
    from finitune.reports.terminal import by_hand, print_repair

    if form == "json":
        print_json(result)
    elif patch or (apply and not result.diff) or (from_run is not None and config and not apply):
        click.echo(result.diff, nl=False)
        for one in result.by_hand:
            click.echo(f"finitune: by hand: {by_hand(one)}", err=True)
        if not (result.diff or result.by_hand):
            click.echo("finitune: nothing to change", err=True)
        for why in result.not_applied:
            click.echo(f"finitune: not changed: {why}", err=True)
    else:
        print_repair(result, console())
