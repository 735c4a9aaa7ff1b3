"""Settings changed inside the text of a YAML file: comments, order, quotes and indentation stay as they are.

PyYAML says where each node stands; only the characters of a value, or one new line, are written.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (PyYAML has no types)

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

BLOCK_STYLES = ("|", ">")
ALIAS = re.compile(r"\s*:\s+(\*[^\s,\[\]{}]+)")
ANCHOR = re.compile(r"&[^\s,\[\]{}]+[ \t]+")


def edited(text: str, changes: Mapping[tuple[str, ...], Any]) -> str:
    """The text with every path of `changes` set to its value; `text` must hold a YAML mapping without a BOM.

    A new key stands behind another one of `changes` in the same mapping, else at its end. Raises ValueError where
    that cannot be done without touching something else.
    """
    beside = {name for path in changes for name in path}
    for path, value in changes.items():
        text = _set(text, _compose(text), list(path), value, beside)
    return text


def _compose(text: str) -> Any:
    import yaml

    node: Any = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(node, yaml.MappingNode):
        raise ValueError("there is no mapping to change")  # noqa: TRY004
    return node


def _set(text: str, mapping: Any, path: list[str], value: Any, beside: set[str]) -> str:
    import yaml

    name, *inner = path
    held = [(key, node) for key, node in mapping.value if key.value == name]
    if not held:
        return _add(text, mapping, name, _nested(inner, value), beside)
    key, node = held[-1]  # of a repeated key the last counts
    if not inner:
        return _replace(text, key, node, name, value)
    if node.start_mark.index < key.end_mark.index:
        raise ValueError(f"{name} is a section that stands elsewhere")
    if not isinstance(node, yaml.MappingNode):
        raise ValueError(f"{name} holds no section")  # noqa: TRY004
    return _set(text, node, inner, value, beside)


def _replace(text: str, key: Any, node: Any, name: str, value: Any) -> str:
    """An alias is replaced, what it names stays; an anchor stays, and with it the value of every alias changes."""
    import yaml

    alias = ALIAS.match(text, key.end_mark.index)
    if alias:
        return text[: alias.start(1)] + _spelt(value) + text[alias.end(1) :]
    anchor = ANCHOR.match(text, node.start_mark.index)
    start, end = anchor.end() if anchor else node.start_mark.index, node.end_mark.index
    if start < key.end_mark.index or text[start : start + 1] == "!":
        raise ValueError(f"{name} has a tag or stands elsewhere")
    scalar = isinstance(node, yaml.ScalarNode)
    if (scalar and node.style in BLOCK_STYLES) or not (scalar or node.flow_style):
        raise ValueError(f"{name} holds several lines")
    if start == end:  # nothing behind the colon
        return f"{text[:start]} {_spelt(value)}{text[start:]}"
    quote = node.style if scalar and node.style in ("'", '"') else ""
    return text[:start] + _spelt(value, old=text[start:end], quote=quote) + text[end:]


def _add(text: str, mapping: Any, name: str, value: Any, beside: set[str]) -> str:
    if not mapping.value:
        at = mapping.start_mark.index + 1  # `{}`: without any entry there is no other spelling
        return f"{text[:at]}{_key(name)}: {_spelt(value)}{text[at:]}"
    neighbour = next((pair for pair in reversed(mapping.value) if pair[0].value in beside), mapping.value[-1])
    if mapping.flow_style:
        return _add_flow(text, neighbour, name, value)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = _lines(name, value, step=_step(mapping))
    indent = " " * mapping.value[0][0].start_mark.column
    new = newline.join(indent + line for line in lines)
    at = _end(*neighbour)
    if text[at - 1 : at] != "\n":
        stop = text.find("\n", at)
        if stop < 0:
            return text + newline + new
        at = stop + 1
    return text[:at] + new + newline + text[at:]


def _add_flow(text: str, neighbour: Any, name: str, value: Any) -> str:
    key, _ = neighbour
    end, start = _end(*neighbour), key.start_mark.index
    before = text[:start].rpartition("\n")[2]
    gap = ("\r\n" if "\r\n" in text else "\n") + before if not before.strip() and "\n" in text[:start] else " "
    own = json.dumps(name) if key.style == '"' else _key(name)
    return f"{text[:end]},{gap}{own}: {_spelt(value)}{text[end:]}"


def _end(key: Any, node: Any) -> int:
    """Where the last character of an entry stands; a block collection's own mark lies behind the comments after it."""
    import yaml

    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        inner = _end(*last) if isinstance(node, yaml.MappingNode) else _end(last, last)
        return max(key.end_mark.index, inner)
    return max(key.end_mark.index, node.end_mark.index)


def _step(mapping: Any) -> int:
    """By how many columns this file indents a section."""
    import yaml

    own = mapping.value[0][0].start_mark.column
    for _, node in mapping.value:
        if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
            return max(node.value[0][0].start_mark.column - own, 1)
    return own or 2


def _lines(name: str, value: Any, *, step: int) -> list[str]:
    if not isinstance(value, Mapping):
        return [f"{_key(name)}: {_spelt(value)}"]
    inner = [line for key, part in value.items() for line in _lines(str(key), part, step=step)]
    return [f"{_key(name)}:", *(" " * step + line for line in inner)]


def _nested(path: list[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _key(name: str) -> str:
    return _word(name)


def _spelt(value: Any, *, old: str = "", quote: str = "") -> str:
    """A value in flow style; yes and no in the spelling of `old`, text in its `quote`s."""
    if isinstance(value, bool):
        pairs = (("true", "false"), ("True", "False"), ("TRUE", "FALSE"), ("yes", "no"), ("Yes", "No"), ("on", "off"))
        yes, no = next((pair for pair in pairs if old in pair), pairs[0])
        return yes if value else no
    if isinstance(value, float):
        # PyYAML reads 1e-05 as text: YAML 1.1 wants a point
        mantissa, e, exponent = repr(value).partition("e")
        return mantissa + ("" if "." in mantissa or not e else ".0") + e + exponent
    if isinstance(value, str):
        if quote == "'" and value.isprintable():
            return "'" + value.replace("'", "''") + "'"
        return json.dumps(value, ensure_ascii=False) if quote else _word(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(key))}: {_spelt(part)}" for key, part in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_spelt(part) for part in value) + "]"
    return json.dumps(value)


def _word(text: str) -> str:
    """Bare where YAML reads it back as the same text, also inside brackets; else in quotes."""
    import yaml

    try:
        plain = yaml.safe_load(f"[{text}]") == [text] and text.isprintable()
    except (yaml.YAMLError, ValueError):
        plain = False
    return text if plain else json.dumps(text, ensure_ascii=False)
