"""`${...}` of OmegaConf in settings: what other keys say is filled in, the rest stays as it is and is named."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

MAX_DEPTH = 8
MAX_TEXT = 10_000
MAX_NODES = 100_000

_ONE = re.compile(r"\$\{([^${}]*)\}")
_ENVIRONMENT = re.compile(r"(?:oc\.)?env:\s*\w+\s*,(.*)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_UNSET = object()


def is_open(value: Any) -> bool:
    """Whether a value still holds an interpolation, which only running would fill in."""
    return isinstance(value, str) and "${" in value


def filled(data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with interpolations of other keys and defaults of the environment filled in."""
    return _filled(data, data, (), [0])


def _filled(node: Any, root: Mapping[str, Any], path: tuple[str, ...], seen: list[int]) -> Any:
    seen[0] += 1
    if seen[0] > MAX_NODES:
        return node
    if isinstance(node, Mapping):
        inner = cast("Mapping[str, Any]", node)
        return {key: _filled(value, root, (*path, key), seen) for key, value in inner.items()}
    if isinstance(node, list):
        return [_filled(value, root, path, seen) for value in cast(list[Any], node)]
    return _value(node, root, path, 0) if is_open(node) else node


def _value(text: str, root: Mapping[str, Any], path: tuple[str, ...], depth: int) -> Any:
    """The text with what can be filled in; a value that is one interpolation keeps its type."""
    for _ in range(MAX_DEPTH):
        whole = _ONE.fullmatch(text)
        if whole is not None:
            found = _meant(whole[1], root, path, depth)
            return text if found is _UNSET else found
        parts = [(one, _meant(one[1], root, path, depth)) for one in _ONE.finditer(text)]
        known = [(one, said) for one, said in parts if isinstance(said, str | int | float) and not is_open(said)]
        if not known:
            return text
        for one, said in reversed(known):
            text = f"{text[: one.start()]}{said}{text[one.end() :]}"
        if len(text) > MAX_TEXT or not is_open(text):
            return text
    return text


def _meant(inner: str, root: Mapping[str, Any], path: tuple[str, ...], depth: int) -> Any:
    """What stands between the braces: a key, from the root or relative, or the default of an environment variable."""
    if environment := _ENVIRONMENT.fullmatch(inner.strip()):
        return _scalar(environment[1].strip())
    if ":" in inner or depth > MAX_DEPTH:  # another resolver
        return _UNSET
    names = inner.strip().replace("[", ".").replace("]", "")
    if names.startswith("."):
        above = len(names) - len(names.lstrip("."))
        parts = (*path[: max(len(path) - above, 0)], *names.lstrip(".").split("."))
    else:
        parts = tuple(names.split("."))
    found: Any = root
    for part in parts:
        if not isinstance(found, Mapping) or part not in found:
            return _UNSET
        found = cast("Mapping[str, Any]", found)[part]
    if is_open(found):
        found = _value(found, root, parts, depth + 1)
    return _UNSET if isinstance(found, Mapping | list) or is_open(found) else found


def _scalar(text: str) -> Any:
    text = text.strip("\"'")
    if text.lower() in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text.lower()]
    return (float(text) if re.search(r"[.eE]", text) else int(text)) if _NUMBER.fullmatch(text) else text


def unfilled(data: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """The dotted keys whose values only running would tell, and these values."""
    for key, value in data.items():
        if is_open(value):
            yield f"{before}{key}", value
        elif isinstance(value, Mapping) and depth < MAX_DEPTH:
            yield from unfilled(cast("Mapping[str, Any]", value), f"{before}{key}.", depth + 1)
