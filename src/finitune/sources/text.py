"""JSON and YAML files, and the values in them; whatever is wrong becomes one line of `UnreadableInput`."""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from finitune.finding import UnreadableInput

MAX_CONFIG_BYTES = 64 * 2**20
"""No configuration is this large (a `tokenizer.json` of 256k tokens is about 35 MB)."""

READ_AT_ONCE = 2**20
MAX_YAML_BYTES = 2**20
MAX_YAML_DEPTH = 50
MAX_NUMBER_DIGITS = 400
_NUMERAL = re.compile(r"[-+]?(?:[-+0-9._:]+|0[xX][0-9a-fA-F_]+|0[bB][01_]+)")
_LINK = re.compile(
    r"(?:\b[a-z][a-z0-9+.-]{1,20}://|\bwww\.|\b(?:mailto|javascript|data|vbscript):(?=\S))\S*|"
    r"(?<![\w./\\-])(?:[a-z0-9-]{1,63}\.){1,8}[a-z]{2,18}(?::\d{1,5})?/\S*",
    re.IGNORECASE,
)
"""An address with its scheme, or a host with a path; a file of Python (`lib/python3.10/...`) is none."""
MAX_YAML_VALUES = 100_000
"""Aliases counted as often as they stand for something: a few lines of YAML can stand for more than any memory."""


def opened(path: Path, *, expected: str) -> IO[bytes]:
    """The file, open for reading; a pipe or a device, which may never end or never begin, is refused.

    Raises UnreadableInput.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            return path.open("rb")
    except OSError as error:
        raise UnreadableInput(f"{path}: {reason(error)} (expected {expected})") from None
    except ValueError:  # a null character
        raise UnreadableInput(f"{path}: not the name of a file (expected {expected})") from None
    raise UnreadableInput(f"{path}: a pipe or a device (expected a file: {expected})")


def text_of(path: Path, *, expected: str, limit: int = MAX_CONFIG_BYTES) -> str:
    """The whole file as UTF-8 text; a byte-order mark is dropped."""
    try:
        with opened(path, expected=expected) as file:
            # a file may grow and some have no size, so the bound is on what is read
            raw = b"".join(_parts(file, limit + 1))
        if len(raw) > limit:
            raise UnreadableInput(f"{path}: more than {limit} bytes (expected {expected})")
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableInput(f"{path}: byte {error.start}: not UTF-8 (expected {expected})") from None
    except OSError as error:
        raise UnreadableInput(f"{path}: {reason(error)} (expected {expected})") from None


def _parts(file: IO[bytes], most: int) -> Iterator[bytes]:
    """At most so many bytes, in parts: one read would take that much memory for a small file as well."""
    while most > 0 and (part := file.read(min(most, READ_AT_ONCE))):
        most -= len(part)
        yield part


def json_of(path: Path, *, limit: int = MAX_CONFIG_BYTES) -> Any:
    """The value of a JSON file."""
    return _json(path, text_of(path, expected="JSON", limit=limit))


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise UnreadableInput(f"{path}: {place}: not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{path}: not JSON ({why_not(error)})") from None


def why_not(error: ValueError | RecursionError) -> str:
    """What is wrong with a text that was refused; with JSON of one line, at which of its characters."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else short(error)


def json_object_of(path: Path) -> dict[str, Any]:
    """A JSON file that must hold an object."""
    value = json_of(path)
    if not isinstance(value, dict):
        raise UnreadableInput(f"{path}: expected a JSON object, found {kind_of(value)}")
    return cast(dict[str, Any], value)


def config_of(path: Path) -> dict[str, Any]:
    """A configuration file, JSON or YAML, that must hold named settings."""
    return settings_of(path, text_of(path, expected="a JSON or YAML configuration"))


def settings_of(path: Path, text: str) -> dict[str, Any]:
    """The settings in the text of a JSON or YAML file."""
    value = _json(path, text) if text.lstrip()[:1] in ("{", "[") else _yaml(path, text)
    if not isinstance(value, Mapping):
        raise UnreadableInput(f"{path}: expected named settings (JSON object or YAML mapping), found {kind_of(value)}")
    return {str(k): v for k, v in cast(Mapping[Any, Any], value).items()}


def _yaml(path: Path, text: str) -> Any:
    import yaml

    if len(text) > MAX_YAML_BYTES:
        raise UnreadableInput(f"{path}: {len(text)} characters (expected YAML of at most {MAX_YAML_BYTES})")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _refuse_yaml_bomb(path, cast(Any, yaml).parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)  # noqa: S506 (a safe loader, in C where there is one)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1} column {mark.column + 1}" if mark else "somewhere"
        raise UnreadableInput(f"{path}: {place}: neither JSON nor YAML ({error.problem})") from None
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        raise UnreadableInput(f"{path}: line {line}: neither JSON nor YAML ({error.reason})") from None
    except RecursionError as error:
        raise UnreadableInput(f"{path}: neither JSON nor YAML ({why_not(error)})") from None
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise UnreadableInput(f"{path}: neither JSON nor YAML ({short(error)})") from None


def _refuse_yaml_bomb(path: Path, events: Iterable[Any]) -> None:
    """Count values as they will stand in memory's view: an alias weighs as much as what it names."""
    import yaml

    sizes: dict[str, int] = {}
    stack: list[tuple[str | None, int]] = [(None, 0)]  # anchor and size of each open collection, outermost first
    for event in events:
        anchor, size = getattr(event, "anchor", None), 0
        if isinstance(event, yaml.AliasEvent):
            if any(name == anchor for name, _ in stack):
                raise UnreadableInput(f"{path}: line {event.start_mark.line + 1}: *{anchor} holds itself")
            size = sizes.get(anchor or "", 1)
        elif isinstance(event, yaml.ScalarEvent):
            if len(event.value) > MAX_NUMBER_DIGITS and _NUMERAL.fullmatch(event.value):
                raise UnreadableInput(
                    f"{path}: line {event.start_mark.line + 1}: a number of {len(event.value)} digits"
                )
            size = 1
            sizes[anchor or ""] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            stack.append((anchor, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            name, size = stack.pop()
            sizes[name or ""] = size
        if size:
            stack[-1] = (stack[-1][0], stack[-1][1] + size)
        if len(stack) > MAX_YAML_DEPTH or stack[-1][1] > MAX_YAML_VALUES:
            limit = f"depth {MAX_YAML_DEPTH}" if len(stack) > MAX_YAML_DEPTH else f"{MAX_YAML_VALUES} values"
            line = event.start_mark.line + 1
            raise UnreadableInput(f"{path}: line {line}: beyond {limit} (expected a configuration in YAML)")


def _is_open(value: object) -> bool:
    """Whether a value holds an interpolation of OmegaConf, which only running would fill in."""
    return isinstance(value, str) and "${" in value


def real(data: Mapping[str, Any], key: str, file: str) -> float | None:
    """A finite number; None when absent, null or "auto". A string such as "1e-5" (YAML's reading of 1e-5) counts."""
    value = data.get(key)
    if value is None or value == "auto" or _is_open(value):
        return None
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UnreadableInput(f"{file}: {key}: {short(repr(value))} (expected a number)")
    return number


def whole(data: Mapping[str, Any], key: str, file: str) -> int | None:
    """A whole number; None when absent, null or "auto"."""
    number = real(data, key, file)
    if number is None:
        return None
    if number != int(number):
        raise UnreadableInput(f"{file}: {key}: {number} (expected a whole number)")
    return int(number)


def flag(data: Mapping[str, Any], key: str, file: str) -> bool | None:
    """A yes or no; None when absent, null or "auto". The strings "true" and "false" count."""
    value = data.get(key)
    if value is None or value == "auto" or isinstance(value, bool) or _is_open(value):
        return value if isinstance(value, bool) else None
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    answer = words.get(str(value).strip().lower())
    if answer is None:
        raise UnreadableInput(f"{file}: {key}: {short(repr(value))} (expected true or false)")
    return answer


def word(data: Mapping[str, Any], key: str) -> str | None:
    """A string; None for anything else and for "auto"."""
    value = data.get(key)
    return value if isinstance(value, str) and value != "auto" and not _is_open(value) else None


def words(data: Mapping[str, Any], key: str) -> list[str] | None:
    """Several strings: a list of them, or one string with commas; None for anything else."""
    value = data.get(key)
    if _is_open(value):
        return None
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list):
        return None
    found = [item for item in cast(list[Any], value) if isinstance(item, str)]
    return found or None


def section(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A nested group of settings, empty where there is none; flags have it as JSON in one word."""
    value = data.get(key)
    if isinstance(value, str) and value[:1] == "{":
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def kind_of(value: Any) -> str:
    """What a JSON value is, in a word."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "nothing" if value is None else next((n for t, n in names.items() if type(value) is t), "something else")


def reason(error: OSError) -> str:
    """Why a file could not be opened, in lower case and without the path."""
    return (error.strerror or type(error).__name__).lower()


def without_links(text: str, instead: str = "(link left out)") -> str:
    """`text` with nothing in it that leads anywhere: who pastes a log or a thread pastes its traps."""
    return _LINK.sub(instead, text)


def short(text: object) -> str:
    """One line of at most 100 characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= 100 else line[:97] + "..."
