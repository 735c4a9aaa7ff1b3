"""`finitune diagnose`: why a run failed, with evidence."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from finitune.cli.commands import console, exit_code, fail_on, newest_run, output_format, print_json
from finitune.finding import Diagnosis, UnreadableInput


@click.command
@click.argument("paths", nargs=-1, metavar="RUN_DIR|LOG...")
@click.option("--case", "case", metavar="FILE", help="A case file (JSON) that tells about a run, instead of PATHS.")
@click.option("--config", "configs", multiple=True, metavar="FILE", help="A configuration of the run; may be repeated.")
@click.option("--model", metavar="DIR", help="Directory of the model that was fine-tuned.")
@click.option("--data", metavar="FILE", help="Training data: JSONL, JSON, Parquet, CSV or text.")
@click.option("--gpu", metavar="NAME", help="Accelerator of the run: V100, T4, A100, H100, 4090, ...")
@click.option("--requirements", metavar="FILE", help="Versions of the run.")
@click.option("--prove", is_flag=True, help="Run the captured steps of a recording again and test the leading causes.")
@click.option("--verbose", "-v", is_flag=True, help="Show every piece of evidence with its weight in bits.")
@output_format
@fail_on
def command(
    paths: tuple[str, ...],
    case: str | None,
    configs: tuple[str, ...],
    model: str | None,
    data: str | None,
    gpu: str | None,
    requirements: str | None,
    form: str,
    fail_on: str,
    *,
    prove: bool,
    verbose: bool,
) -> int:
    """Say why a run failed, with evidence.

    Without PATHS it is the newest run under runs/; - is what is piped in; several directories are several runs, and
    are put side by side, as are runs of a file (DATABASE:RUN, PANEL.csv:RUN). Of a recorded run: the first bad value,
    the cause and its remedies, for every incident. Of logs (text from the terminal, trainer_state.json, CSV, events
    of TensorBoard, run folders of W&B, MLflow and Trackio; also gzipped): what they show, and what would decide.

    For instance: finitune diagnose train.log --config run_sft.sh
    """
    if paths and case is not None:
        raise click.UsageError("PATHS and --case are two diagnoses; give one.")
    if not paths and case is None:
        paths = (newest_run("RUN_DIR|LOG..."),)
    with TemporaryDirectory(prefix="finitune-") as folder:
        given = [_piped(Path(folder)) if path == "-" else path for path in paths]
        try:
            return _diagnosed(
                tuple(given), case=case, configs=configs, model=model, data=data, gpu=gpu, requirements=requirements,
                form=form, fail_on=fail_on, prove=prove, verbose=verbose,
            )  # fmt: skip
        except UnreadableInput as error:  # the folder is gone by the time that somebody reads this
            raise UnreadableInput(str(error).replace(f"{folder}/", "")) from None


def _piped(folder: Path) -> str:
    """What is piped in, as a file, because some formats are read from both ends."""
    file = folder / "stdin"
    with file.open("wb") as out:
        shutil.copyfileobj(sys.stdin.buffer, out)
    return str(file)


def _diagnosed(
    paths: tuple[str, ...], *, case: str | None, configs: tuple[str, ...], model: str | None, data: str | None,
    gpu: str | None, requirements: str | None, form: str, fail_on: str, prove: bool, verbose: bool,
) -> int:  # fmt: skip
    from finitune.diagnosis.diagnose import are_runs, diagnose, is_recording

    if are_runs(*paths) and prove:
        raise click.UsageError("Several runs are only compared; give one for --prove.")
    recorded = is_recording(*paths)
    given = {
        "--config": configs,
        "--model": None if prove and recorded else model,
        "--data": data,
        "--gpu": gpu,
        "--requirements": requirements,
    }
    extra = [name for name, value in given.items() if value]
    if extra and (case is not None or recorded):
        raise click.UsageError(f"{extra[0]} goes with logs; a recording and a case hold the facts of their run.")
    if prove and recorded:
        _prove(paths[0], model)
    from finitune.reports.progress import bar

    beside = None if recorded else model  # beside a recording it is where --prove takes the weights from
    result = diagnose(
        *paths, case=case, configs=configs, model=beside, data=data, gpu=gpu, requirements=requirements, track=bar
    )
    if prove and not recorded:
        what = "a case" if case is not None else "a log"
        say = f"{what} holds no step to run again; record the run: finitune run -- COMMAND (what you type to train)"
        click.echo(f"finitune: nothing was proved: {say}", err=True)
    if form == "json":
        print_json(result)
    elif not isinstance(result, Diagnosis):
        click.echo(str(result))
    else:
        from finitune.reports.terminal import print_diagnosis

        print_diagnosis(result, console(), run_dir=paths[0] if recorded else None, verbose=verbose)
    return exit_code(["error"] * (result.verdict != "healthy"), fail_on)


def _prove(run_dir: str, model: str | None) -> None:
    """Experiments, printed on stderr; what they find stands in the recording when it is diagnosed."""
    try:
        from finitune.monitor.proof import prove
    except ImportError as error:
        need = "pip install 'finitune[hf]'"
        click.echo(f"finitune: nothing was proved: {error.name} is not installed here ({need})", err=True)
        return
    for line in prove(run_dir, model=model):
        click.echo(f"finitune: {line}", err=True)
