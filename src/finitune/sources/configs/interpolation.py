"""`${...}` of OmegaConf in settings: what other keys say is filled in, the rest stays as it is and is named."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

MAX_DEPTH = 8
MAX_TEXT = 10_000
MAX_WORK = 200_000
"""Values, interpolations and hundreds of characters of one file; a file has a few hundred."""

_ONE = re.compile(r"\$\{([^${}]*)\}")
_ENVIRONMENT = re.compile(r"(?:oc\.)?env:\s*\w+\s*,(.*)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_UNSET = object()


def is_open(value: Any) -> bool:
    """Whether a value still holds an interpolation, which only running would fill in."""
    return isinstance(value, str) and "${" in value


def filled(data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with interpolations of other keys and defaults of the environment filled in."""
    return _Filling(root=data).node(data, ())


@dataclass(slots=True)
class _Filling:
    """Fills in one file; its lifetime is that of the work that is left to do for it."""

    root: Mapping[str, Any]
    left: int = MAX_WORK

    def node(self, node: Any, path: tuple[str, ...]) -> Any:
        self.left -= 1
        if self.left < 0:
            return node
        if isinstance(node, Mapping):
            inner = cast("Mapping[str, Any]", node)
            return {key: self.node(value, (*path, str(key))) for key, value in inner.items()}
        if isinstance(node, list):
            return [self.node(value, path) for value in cast(list[Any], node)]
        return self.text(node, path, 0) if is_open(node) else node

    def text(self, text: str, path: tuple[str, ...], depth: int) -> Any:
        """The text with what can be filled in; a value that is one interpolation keeps its type."""
        for _ in range(MAX_DEPTH):
            whole = _ONE.fullmatch(text)
            if whole is not None:
                found = self.meant(whole[1], path, depth)
                return text if found is _UNSET else found
            parts = [(one, self.meant(one[1], path, depth)) for one in _ONE.finditer(text)]
            known = [(one, str(said)) for one, said in parts if isinstance(said, str | int | float)]
            grown = len(text) + sum(len(said) for _, said in known)
            self.left -= grown // 100
            if not known or grown > MAX_TEXT or self.left < 0:
                return text
            for one, said in reversed(known):
                text = f"{text[: one.start()]}{said}{text[one.end() :]}"
            if not is_open(text):
                return text
        return text

    def meant(self, inner: str, path: tuple[str, ...], depth: int) -> Any:
        """What stands between the braces: a key, from the root or relative, or the default of a variable."""
        self.left -= 1
        if environment := _ENVIRONMENT.fullmatch(inner.strip()):
            return _scalar(environment[1].strip())
        if ":" in inner or depth > MAX_DEPTH or self.left < 0:  # another resolver
            return _UNSET
        names = inner.strip().replace("[", ".").replace("]", "")
        if names.startswith("."):
            above = len(names) - len(names.lstrip("."))
            parts = (*path[: max(len(path) - above, 0)], *names.lstrip(".").split("."))
        else:
            parts = tuple(names.split("."))
        found: Any = self.root
        for part in parts:
            if not isinstance(found, Mapping) or part not in found:
                return _UNSET
            found = cast("Mapping[str, Any]", found)[part]
        if is_open(found):
            found = self.text(found, parts, depth + 1)
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
