"""`finitune causes`: the cause book in the terminal."""

from __future__ import annotations

import inspect

import click

from finitune.cli.commands import closest, console, print_chapter
from finitune.finding import UnreadableInput


@click.command
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Show the cause book, or the chapter called NAME.

    Of a word that is no chapter: the chapters that have it in their name or title.
    """
    from finitune.chapter import causes, remedies

    book = causes()
    out = console()
    if name is None:
        from finitune.reports.terminal import print_table

        rows = [(slug, str(getattr(one.module, "public_incidents", 0)), one.title) for slug, one in book.items()]
        print_table(rows, out)
        out.print("\nThe number counts public incidents. Read a chapter: finitune causes NAME")
        return
    chapter = book.get(name)
    word = name.lower()
    alike = [
        (slug, "", one.title) for slug, one in book.items() if word in slug.split("-") or word in one.title.lower()
    ]
    if chapter is None and alike:
        from finitune.reports.terminal import print_table

        print_table(alike, out)
        return
    if chapter is None:
        if name in remedies():
            raise UnreadableInput(f"'{name}' is a remedy: finitune remedies {name}")
        raise UnreadableInput(f"no cause is called '{name}'{closest(name, book)}")
    print_chapter(name, inspect.cleandoc(chapter.module.__doc__ or ""))
