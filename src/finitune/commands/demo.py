"""`finitune demo`: the founding incidents, broken and cured, offline."""

from __future__ import annotations

import importlib
import pkgutil

import click

from finitune.commands import closest
from finitune.finding import UnreadableInput


@click.command
@click.argument("name", default="yi")
def command(name: str) -> int:
    """Watch a founding incident break and be cured.

    NAME is the incident, by default yi. A small real model is trained, offline.
    """
    from finitune import demo

    stories = [info.name for info in pkgutil.iter_modules(demo.__path__)]
    main = getattr(importlib.import_module(f"finitune.demo.{name}"), "main", None) if name in stories else None
    if main is None:
        raise UnreadableInput(f"no demo is called '{name}'{closest(name, stories)}")
    return int(main() or 0)
