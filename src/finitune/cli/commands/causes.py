"""`finitune causes`: the cause book in the terminal."""

from __future__ import annotations

import inspect

import click

from finitune.cli.commands import closest, console
from finitune.finding import UnreadableInput


@click.command
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Show the cause book, or the chapter called NAME."""
    from finitune.chapter import causes

    book = causes()
    out = console()
    if name is None:
        from finitune.reports.terminal import print_table

        rows = [(slug, str(getattr(one.module, "public_incidents", 0)), one.title) for slug, one in book.items()]
        print_table(rows, out)
        out.print("\nThe number counts public incidents. Read a chapter: finitune causes NAME")
        return
    chapter = book.get(name)
    if chapter is None:
        raise UnreadableInput(f"no cause is called '{name}'{closest(name, book)}")
    text = inspect.cleandoc(chapter.module.__doc__ or "")
    if out.is_terminal:
        from rich.markdown import Markdown
        from rich.theme import Theme

        out.push_theme(Theme({"markdown.h2": "bold", "markdown.code": "bold", "markdown.item.bullet": "none"}))
        out.print(f"{name}\n", style="bold")
        out.print(Markdown(text), width=min(out.width, 100))
    else:
        click.echo(f"# {name}\n\n{text}")
