"""`finitune check`: will this run survive, and what to change."""

from __future__ import annotations

from typing import Any

import click

from finitune.cli.commands import console, exit_code, print_json

UNREADABLE = 2


@click.command
@click.argument("configs", nargs=-1, metavar="[CONFIG]...")
@click.option("--model", metavar="DIR", help="Directory of the model to fine-tune.")
@click.option("--data", metavar="FILE", help="Training data: JSONL, JSON, Parquet, CSV or text.")
@click.option("--gpu", metavar="NAME", help="Accelerator of the run: V100, T4, A100, H100, 4090, ...")
@click.option("--requirements", metavar="FILE", help="Versions of the run, if not those of this environment.")
@click.option(
    "--each", is_flag=True,
    help="Check every CONFIG by itself and pass over files that are none; for pre-commit.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(["terminal", "json", "sarif"]), default="terminal", show_default=True
)
@click.option("--quiet", "-q", is_flag=True, help="Print findings alone, and nothing where there are none.")
@click.option(
    "--fail-on", type=click.Choice(["error", "warning", "incomplete", "info", "never"]), default="error",
    show_default=True,
    help="Exit with 1 when something at least this severe was found; incomplete: or an input could not be used.",
)  # fmt: skip
def command(
    *,
    configs: tuple[str, ...],
    model: str | None,
    data: str | None,
    gpu: str | None,
    requirements: str | None,
    each: bool,
    quiet: bool,
    form: str,
    fail_on: str,
) -> int:
    """Foresee numerical failures before a run.

    Reads configs, model, data and hardware; trains nothing. CONFIG is a file of settings (DeepSpeed, TRL, accelerate,
    Axolotl, LLaMA-Factory, Ludwig, torchtune, Hydra...), a launch script, train.py, a notebook, or a project folder;
    several are taken for one run.

    For instance: finitune check run_sft.sh --gpu V100, or finitune check .
    """
    if not configs and model is None and data is None:
        raise click.UsageError("Nothing to check: name a config, --model or --data.")
    from finitune.preflight import check, check_each
    from finitune.reports.progress import bar

    shown: dict[str, Any] = {} if quiet else {"track": bar}
    ask = check_each if each else check
    result = ask(*configs, model=model, data=data, gpu=gpu, requirements=requirements, **shown)
    if form == "json":
        print_json(result)
    elif form == "sarif":
        from finitune.reports import sarif

        click.echo(sarif.render(result))
    else:
        from finitune.reports.terminal import print_check

        print_check(result, console(), quiet=quiet)
    if each and result.not_checked:  # every file was reported; some of them could not be read
        for one in result.not_checked if quiet else ():
            click.echo(f"finitune: {one.why}", err=True)
        return UNREADABLE
    if fail_on == "incomplete":
        return int(result.verdict != "ok")
    return exit_code((finding.severity for finding in result.findings), fail_on)
