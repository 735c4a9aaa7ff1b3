"""Settings changed inside the text of a JSON or YAML file: comments, order, quotes and indentation stay as they are.

Only the characters of a value, or one new entry, are written; whoever changes a file reads it back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from tree_sitter import Node

from finitune.finding import Renamed, short_exponent
from finitune.sources.editing.syntax import parsed

MAPPINGS = ("object", "flow_mapping", "block_mapping")
PAIRS = ("pair", "flow_pair", "block_mapping_pair")

_TRAILING_SPACE = re.compile(r"\s*\Z")

DEEPEST = 8
"""Sections within sections that a place is looked for in."""

Path = tuple[str, ...]


def edited(text: str, changes: Mapping[Path, Any], language: Literal["json", "yaml"]) -> str:
    """The text with every path of `changes` set to its value, or its last key renamed; `text` has no BOM.

    A new key stands behind another one of `changes` in the same mapping, else at its end. Raises ValueError where
    that cannot be done without touching something else.
    """
    beside = {name for path in changes for name in path}
    for path, value in changes.items():
        text = _set(text, _mapping(parsed(text, language)), path, value, beside)
    return text


def lines(text: str, language: Literal["json", "yaml"]) -> dict[str, int]:
    """The line of each key from 1, under its dotted path and under every end of that path; the first one counts.

    Raises ValueError for text that takes longer to read than any that people write.
    """
    found: dict[str, int] = {}
    todo: list[tuple[Node | None, Path]] = [(_mapping(parsed(text, language)), ())]
    while todo:
        mapping, above = todo.pop(0)
        for pair in _pairs(mapping) if mapping is not None else ():
            path = (*above, _name(text, pair))
            for start in range(len(path)):
                found.setdefault(".".join(path[start:]), pair.start_point[0] + 1)
            if len(path) < DEEPEST:
                todo.append((_mapping(pair.child_by_field_name("value")), path))
    return found


def _set(text: str, mapping: Node | None, path: Path, value: Any, beside: Collection[str]) -> str:
    name, *inner = path
    if mapping is None:
        raise ValueError(f"there is no section that holds {name}")
    held = [pair for pair in _pairs(mapping) if _name(text, pair) == name]
    if not held:
        for key in reversed(inner):
            value = {key: value}
        return _add(text, mapping, name, value, beside)
    if isinstance(value, Renamed) and not inner:
        return _rename(text, held, value.renamed_to.rpartition(".")[2])
    last = held[-1]  # of a repeated key the last counts
    if inner:
        return _set(text, _mapping(last.child_by_field_name("value")), tuple(inner), value, beside)
    return _replace(text, last, name, value)


def _rename(text: str, held: Sequence[Node], new: str) -> str:
    key = held[0].child_by_field_name("key")
    if key is None or len(held) > 1:
        raise ValueError(f"{_name(text, held[0])} stands there {len(held)} times")
    quote = text[key.start_byte] if text[key.start_byte] in ("'", '"') else ""
    return f"{text[: key.start_byte]}{quote}{new}{quote}{text[key.end_byte :]}"


def _mapping(node: Node | None) -> Node | None:
    """The mapping that a document or a value is, behind its anchor."""
    while node is not None and node.type not in MAPPINGS:
        parts = [part for part in node.named_children if part.type not in ("anchor", "comment")]
        wraps = node.type in ("stream", "document", "block_node", "flow_node") and len(parts) == 1
        node = parts[0] if wraps else None
    return node


def _pairs(mapping: Node) -> list[Node]:
    return [child for child in mapping.children if child.type in PAIRS]


def _name(text: str, pair: Node) -> str:
    import yaml

    written = _of(text, pair.child_by_field_name("key"))
    return str(yaml.safe_load(written)) if written[:1] in ("'", '"') else written


def _of(text: str, node: Node | None) -> str:
    return text[node.start_byte : node.end_byte] if node else ""


def _replace(text: str, pair: Node, name: str, value: Any) -> str:
    """An alias is replaced, what it names stays; an anchor stays, and with it the value of every alias changes."""
    node = pair.child_by_field_name("value")
    if node is None:  # nothing behind the colon
        return f"{text[: pair.end_byte]} {_yaml(value)}{text[pair.end_byte :]}"
    if pair.type == "pair":
        return text[: node.start_byte] + _json(value, text) + text[node.end_byte :]
    parts = node.named_children
    if any(part.type == "tag" for part in parts) or parts[-1].type == "anchor":
        raise ValueError(f"{name} has a tag, or an anchor alone")
    if parts[-1].type.startswith("block_"):
        raise ValueError(f"{name} holds several lines")
    old = _of(text, parts[-1])
    quote = old[0] if old[0] in ("'", '"') else ""
    return text[: parts[-1].start_byte] + _yaml(value, old=old, quote=quote) + text[node.end_byte :]


def _add(text: str, mapping: Node, name: str, value: Any, beside: Collection[str]) -> str:
    pairs = _pairs(mapping)
    js = mapping.type == "object"
    if not pairs:  # without any entry there is no other spelling
        entry = f"{_json(name, text)}: {_json(value, text)}" if js else f"{_word(name)}: {_yaml(value)}"
        return text[: mapping.start_byte + 1] + entry + text[mapping.end_byte - 1 :]
    neighbour = next((pair for pair in reversed(pairs) if _name(text, pair) in beside), pairs[-1])
    if mapping.type == "block_mapping":
        return _add_lines(text, pairs, neighbour, name, value)
    key, old = neighbour.child_by_field_name("key"), neighbour.child_by_field_name("value")
    space = _TRAILING_SPACE.search(text, 0, neighbour.start_byte)
    gap = space[0] if space else ""
    if "\n" in gap:
        gap = ("\r\n" if "\r\n" in gap else "\n") + gap.rpartition("\n")[2]
    colon = text[key.end_byte : old.start_byte] if js and key and old else ": "
    own = _json(name, text) if js or _of(text, key).startswith('"') else _word(name)
    spelt = _indented(value, text, mapping, gap) if js else _yaml(value)
    return f"{text[: neighbour.end_byte]},{gap or ' '}{own}{colon}{spelt}{text[neighbour.end_byte :]}"


def _indented(value: Any, text: str, mapping: Node, gap: str) -> str:
    """JSON on lines of its own, where the entries beside it have such lines."""
    if "\n" not in gap:
        return _json(value, text)
    newline, _, indent = gap.rpartition("\n")
    outer = text[: mapping.end_byte - 1].rpartition("\n")[2]
    step = indent.removeprefix(outer) if not outer.strip() else ""
    spelt = json.dumps(value, ensure_ascii=text.isascii(), indent=step or "  ")
    return spelt.replace("\n", f"{newline}\n{indent}")


def _add_lines(text: str, pairs: Sequence[Node], neighbour: Node, name: str, value: Any) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    column = pairs[0].start_point.column
    inner = (_mapping(pair.child_by_field_name("value")) for pair in pairs)
    steps = [one.start_point.column - column for one in inner if one and one.type == "block_mapping"]
    new = newline.join(" " * column + line for line in _lines(name, value, step=(*steps, column or 2)[0]))
    at = text.find("\n", _end(neighbour) - 1) + 1
    return text[:at] + new + newline + text[at:] if at else text + newline + new


def _end(node: Node) -> int:
    """Where the last character of an entry stands; the grammar counts the comments behind a section to it."""
    while node.type.startswith("block_") and node.type != "block_scalar":
        node = [child for child in node.children if child.type != "comment"][-1]
    return node.end_byte


def _lines(name: str, value: Any, *, step: int) -> list[str]:
    if not isinstance(value, Mapping):
        return [f"{_word(name)}: {_yaml(value)}"]
    inner = [line for key, part in value.items() for line in _lines(str(key), part, step=step)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return [f"{_word(name)}:", *(" " * step + line for line in inner)]


def _json(value: Any, text: str) -> str:
    said = json.dumps(value, ensure_ascii=text.isascii())
    return short_exponent(said) if isinstance(value, float) else said


def _yaml(value: Any, *, old: str = "", quote: str = "") -> str:
    """A value in flow style; yes and no in the spelling of `old`, text in its `quote`s."""
    if isinstance(value, bool):
        pairs = (("true", "false"), ("True", "False"), ("TRUE", "FALSE"), ("yes", "no"), ("Yes", "No"), ("on", "off"))
        yes, no = next((pair for pair in pairs if old in pair), pairs[0])
        return yes if value else no
    if isinstance(value, float):
        # PyYAML reads 1e-05 as text: YAML 1.1 wants a point
        mantissa, e, exponent = short_exponent(repr(value)).partition("e")
        return mantissa + ("" if "." in mantissa or not e else ".0") + e + exponent
    if isinstance(value, str):
        if quote == "'" and value.isprintable():
            return "'" + value.replace("'", "''") + "'"
        return json.dumps(value, ensure_ascii=False) if quote else _word(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_word(str(key))}: {_yaml(part)}" for key, part in value.items()) + "}"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, Sequence):
        return "[" + ", ".join(_yaml(part) for part in value) + "]"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return json.dumps(value)


def _word(text: str) -> str:
    """Bare where YAML reads it back as the same text, also inside brackets; else in quotes."""
    import yaml

    try:
        plain = yaml.safe_load(f"[{text}]") == [text] and text.isprintable()
    except (yaml.YAMLError, ValueError):
        plain = False
    return text if plain else json.dumps(text, ensure_ascii=False)
