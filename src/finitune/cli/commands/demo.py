"""`finitune demo`: the founding incidents, broken and cured, offline."""

from __future__ import annotations

import click

from finitune.cli.commands import closest
from finitune.finding import UnreadableInput

PLAIN = "{}-plain"
"""The same incident without the framework in which it happened."""


@click.command
@click.argument("name", default="yi")
def command(name: str) -> int:
    """Watch a founding incident break and be cured.

    NAME is the incident: yi (the default), medicalgpt, ludwig, unsloth or omnilmm. A small real model is trained,
    offline.
    """
    from finitune.demo import runner, story

    examples = story.stories()
    if name not in examples:
        raise UnreadableInput(f"no demo is called '{name}'{closest(name, set(examples))}")
    chosen = story.read(examples[name])
    plain = examples.get(PLAIN.format(name))
    if plain is not None and story.missing(chosen):
        chosen = story.read(plain)
    return runner.main(chosen)
