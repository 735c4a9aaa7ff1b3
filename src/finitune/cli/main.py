"""The command line: parse, call, exit code. Every verb is one file of `commands/`, found by its name."""

from __future__ import annotations

import errno
import importlib
import io
import os
import pkgutil
import sys
from collections.abc import Sequence

import click

from finitune import __version__
from finitune.cli import commands
from finitune.finding import UnreadableInput

USAGE = 2
INTERRUPTED = 130


class Verbs(click.Group):
    """A group whose commands are the modules of `finitune.cli.commands`; each holds one, called `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(info.name for info in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        return importlib.import_module(f"finitune.cli.commands.{cmd_name}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.list_commands(ctx):
            raise click.UsageError(
                f"No such command '{args[0]}'{commands.closest(args[0], self.list_commands(ctx))}", ctx
            )
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", "-V", prog_name="finitune", message="%(prog)s %(version)s")
@click.pass_context
def finitune(ctx: click.Context) -> int:
    """Keep LLM fine-tuning numerically finite.

    check before a run, run to watch it, diagnose and report after it, repair what was found.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        return USAGE
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code; bad usage and bad input are one line on stderr and 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    try:
        code = finitune.main(args=None if argv is None else list(argv), prog_name="finitune", standalone_mode=False)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else _typed(sys.argv[1:] if argv is None else argv)
        return _refuse(path, f"{error.format_message().rstrip('.')} (see {path} --help)")
    except click.ClickException as error:
        return _refuse("finitune", error.format_message())
    except UnreadableInput as error:
        return _refuse("finitune", str(error))
    except OSError as error:
        if error.errno == errno.EPIPE:
            # What is still buffered has no reader; without this Python complains about it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 1
        return _refuse("finitune", f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (MemoryError, RecursionError) as error:
        return _refuse("finitune", f"{type(error).__name__}: an input is too large or too deep for this machine")
    except Exception as error:
        if os.environ.get("FINITUNE_TRACEBACK"):
            raise
        what = f"{type(error).__name__}: {str(error)[:200]}"
        return _refuse("finitune", f"internal error, please report it: {what} (FINITUNE_TRACEBACK=1 shows where)")
    return int(code or 0)


def _typed(argv: Sequence[str]) -> str:
    """The verb that was typed; click does not say it of an option without its value."""
    verbs = {info.name for info in pkgutil.iter_modules(commands.__path__)}
    return f"finitune {argv[0]}" if argv and argv[0] in verbs else "finitune"


def _refuse(who: str, message: str) -> int:
    from finitune.reports.sentences import printable

    click.echo(f"{who}: {printable(' '.join(message.split()))}", err=True)
    return USAGE
