"""Files of settings that a program reads by itself, as mappings: YAML, JSON, OmegaConf, and what Hydra hands over.

They are looked for as every named file is, in the folder and the project of the program.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finitune.finding import UnreadableInput
from finitune.sources.configs import hydra
from finitune.sources.configs.beside import beside
from finitune.sources.configs.interpolation import filled
from finitune.sources.configs.program.names import Function, Site, last_name
from finitune.sources.configs.program.values import Reader
from finitune.sources.configs.tables import nested, over
from finitune.sources.text import settings_of, text_of

LOADERS = re.compile(r"(yaml\.(safe_|full_)?load|json\.loads?|OmegaConf\.load)$")
OPENERS = ("open", "Path", "read_text", "read", "expanduser", "resolve")
MAX_BYTES = 2**20


def loaded(reader: Reader, node: ast.Call, name: str, site: Site) -> Mapping[str, Any] | None:
    """What a call of `name` reads from a file that constants name; None for other calls, and where it is not here."""
    if not LOADERS.search(name) or not node.args:
        return None
    named = _named(reader, node.args[0], site)
    return _settings(beside(reader.names.file, named)) if named else None


def handed_over(reader: Reader, node: Function, site: Site) -> Mapping[str, Any] | None:
    """What Hydra gives to its main function: its file and the files of its defaults, under what is typed."""
    for one in node.decorator_list:
        if not isinstance(one, ast.Call) or last_name(one.func) != "main" or "hydra" not in ast.unparse(one.func):
            continue
        said = {keyword.arg: reader.value(keyword.value, site) for keyword in one.keywords}
        folder, name = said.get("config_path") or ".", said.get("config_name")
        if isinstance(folder, str) and isinstance(name, str):
            path = Path(reader.names.file).parent / folder / f"{name.removesuffix('.yaml')}.yaml"
            found = _settings(path)
            return None if found is None else over(found, nested({k: v for k, v in reader.typed.items() if "." in k}))
    return None


def _named(reader: Reader, node: ast.expr, site: Site) -> str | None:
    """The path in `"a.yaml"`, `open("a.yaml")`, `Path("a.yaml").read_text()` or of a file that is open there."""
    if isinstance(node, ast.Call) and last_name(node.func) in OPENERS:
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        inner = node.args[0] if node.args and last_name(node.func) in ("open", "Path") else owner
        return _named(reader, inner, site) if inner is not None else None
    said = reader.value(node, site)
    if isinstance(said, str):
        return said
    if isinstance(node, ast.Name):
        before = [c for c in reader.names.calls_named("open") if c.site.scope is site.scope and c.line <= node.lineno]
        return _named(reader, before[-1].node, before[-1].site) if before else None
    return None


def _settings(path: Path) -> Mapping[str, Any] | None:
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        settings = settings_of(path, text_of(path, expected="a file of settings"))
        return filled(hydra.composed(path, settings) if "defaults" in settings else settings)
    except (OSError, UnreadableInput):
        return None  # the program fails there as well
