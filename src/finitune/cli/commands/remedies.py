"""`finitune remedies`: what each remedy does, and whether it may be applied unread."""

from __future__ import annotations

import inspect

import click

from finitune.cli.commands import closest, console, print_chapter
from finitune.finding import UnreadableInput

SAFETY = {
    "safe": "safe: the same training, or one that only fails less; `finitune repair --apply` writes it",
    "unsafe": "unsafe: it changes the model, the data or what is learned; read what it changes, then apply it",
    "advice": "advice: by hand; what is right depends on what the author of the run meant",
}
"""What stands behind every remedy that a finding proposes."""


@click.command
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Show the remedies, or explain the one called NAME.

    Of each: what it changes, when it is safe, and whether it is safe, unsafe or advice.
    """
    from finitune.chapter import causes, remedies

    book = remedies()
    if name is None:
        from finitune.reports.terminal import print_table

        out = console()
        print_table([(slug, one.safety, one.title) for slug, one in book.items()], out)
        out.print("")
        for meaning in SAFETY.values():
            out.print(meaning)
        out.print("\nRead about one: finitune remedies NAME")
        return
    chapter = book.get(name)
    if chapter is None:
        if name in causes():
            raise UnreadableInput(f"'{name}' is a cause: finitune causes {name}")
        raise UnreadableInput(f"no remedy is called '{name}'{closest(name, book)}")
    used_by = [slug for slug, one in causes().items() if name in one.declared("remedies")]
    text = inspect.cleandoc(chapter.module.__doc__ or "")
    head, _, rest = text.partition("\n\n")
    text = f"{head}\n\n{SAFETY[chapter.safety].capitalize()}.\n\n{rest}"
    if used_by:
        text += f"\n\n## Proposed for\n\n{', '.join(used_by)}"
    print_chapter(name, text)
