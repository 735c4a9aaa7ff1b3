"""`finitune run`: watch the command you already use."""

from __future__ import annotations

import click


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--run-dir", metavar="DIR", help="Where to record.  [default: runs/<time>]")
@click.option(
    "--mode", type=click.Choice(["observe", "guard", "heal"]), default="guard", show_default=True,
    help="observe never alters the run; guard discards non-finite updates and stops when they persist; "
    "heal also applies remedies whose cause was proved, and undoes those that do not hold.",
)  # fmt: skip
@click.option(
    "--inject", multiple=True, metavar="KIND:MODULE:STEP[:RANK]",
    help="Plant a fault (nan, inf, bitflip, overflow) to test your set-up; may be repeated.",
)  # fmt: skip
@click.option(
    "--signals", type=click.Choice(["gate", "economy", "full"]), default="economy", show_default=True,
    help="How much is recorded of each step.",
)  # fmt: skip
@click.option(
    "--watch-step", type=click.IntRange(min=1), metavar="N",
    help="Watch step N operator by operator, and end the run right after it (exit code 3).",
)  # fmt: skip
@click.option(
    "--rerun",
    is_flag=True,
    help="After a bad step that could not be located, run COMMAND again to watch that step; its saves are held back.",
)
@click.option(
    "--skip-spikes", is_flag=True,
    help="Also leave out a step whose loss or gradient norm lies far above all that the run has shown, at most "
    "three in a row.",
)  # fmt: skip
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def command(
    run_dir: str | None, mode: str, inject: tuple[str, ...], signals: str, watch_step: int | None,
    words: tuple[str, ...], *, rerun: bool, skip_spikes: bool,
) -> int:  # fmt: skip
    """Watch the training command you already use.

    For instance: finitune run -- torchrun --nproc-per-node 8 train.py --lr 1e-4

    Returns the exit code of COMMAND, or 3 when finitune stopped it.
    """
    if not words:
        raise click.UsageError("No command given; expected finitune run -- COMMAND")
    from finitune.launch import run

    return run(
        list(words),
        run_dir=run_dir, mode=mode, inject=list(inject), signals=signals, watch_step=watch_step, rerun=rerun,
        skip_spikes=skip_spikes,
    )  # fmt: skip
