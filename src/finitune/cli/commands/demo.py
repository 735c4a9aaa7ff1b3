"""`finitune demo`: the founding incidents, broken and cured, offline."""

from __future__ import annotations

import importlib
import pkgutil

import click

from finitune.cli.commands import closest
from finitune.finding import UnreadableInput


@click.command
@click.argument("name", default="yi")
def command(name: str) -> int:
    """Watch a founding incident break and be cured.

    NAME is the incident: yi (the default), medicalgpt, ludwig, unsloth or omnilmm. A small real model is trained,
    offline.
    """
    from finitune import demo
    from finitune.demo import story

    examples = story.stories()
    packages = [info.name for info in pkgutil.iter_modules(demo.__path__) if info.ispkg]
    if name not in [*examples, *packages]:
        raise UnreadableInput(f"no demo is called '{name}'{closest(name, {*examples, *packages})}")
    told = story.read(examples[name]) if name in examples else None
    if told is not None and (name not in packages or not story.missing(told)):
        from finitune.demo import tell

        return tell.main(told)
    return int(importlib.import_module(f"finitune.demo.{name}").main() or 0)
