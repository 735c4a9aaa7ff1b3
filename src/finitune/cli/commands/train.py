"""`finitune train`: a guarded fine-tune, with everything chosen that the file leaves out."""

from __future__ import annotations

import click

from finitune.cli.commands import output_format, print_json


@click.command
@click.argument("config")
@click.option("--plan", "only_plan", is_flag=True, help="Print every choice with its reason; train nothing.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json, for --plan.")
@click.option("--launch-file", metavar="FILE", help="Write a script for several nodes or SLURM; train nothing.")
@click.option("--nodes", type=click.IntRange(min=1), default=2, show_default=True, help="For --launch-file.")
@click.option(
    "--gpus", type=click.IntRange(min=1), default=8, show_default=True, help="Of each node; for --launch-file."
)
@output_format
def command(
    *, config: str, only_plan: bool, as_json: bool, launch_file: str | None, nodes: int, gpus: int, form: str
) -> int:  # fmt: skip
    """Fine-tune as CONFIG says, guarded.

    Text models, in full or with LoRA or QLoRA. CONFIG is YAML under TRL's own names, with a block `finitune:` for the
    rest; finitune init writes one. A run that was killed goes on where its last checkpoint was when the same command is
    typed again. With several processes: torchrun --nproc-per-node 2 -m finitune train CONFIG

    Returns 3 when finitune stopped the run, 1 when it could not be saved or what was saved is not as it was trained.
    """
    from finitune.reports.progress import bar
    from finitune.train.prepared import prepare

    if only_plan:
        prepared = prepare(config, trains=False, track=bar)
        if as_json or form == "json":
            print_json(prepared.plan)
        else:
            from finitune.train.shown import lines

            click.echo("\n".join(lines(prepared.written, prepared.plan)))
        return 0
    if launch_file is not None:
        from finitune.train.launch_file import write_launch_file
        from finitune.train.settings import read

        read(config)
        written = write_launch_file(launch_file, config, nodes=nodes, processes=gpus)
        click.echo(f"{written} is written; its syntax is right, and it was not tried on a cluster.")
        return 0
    from finitune.train.run import train

    return train(config, track=bar)
