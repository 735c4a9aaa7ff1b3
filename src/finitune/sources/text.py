"""JSON and YAML files, and the values in them; whatever is wrong becomes one line of `UnreadableInput`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from finitune.finding import UnreadableInput

MAX_CONFIG_BYTES = 64 * 2**20
"""No configuration is this large (a `tokenizer.json` of 256k tokens is about 35 MB)."""


def text_of(path: Path, *, expected: str, limit: float = MAX_CONFIG_BYTES) -> str:
    """The whole file as UTF-8 text; a byte-order mark is dropped."""
    try:
        if path.stat().st_size > limit:
            raise UnreadableInput(f"{path}: {path.stat().st_size} bytes (expected {expected} of at most {limit})")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableInput(f"{path}: byte {error.start}: not UTF-8 (expected {expected})") from None
    except OSError as error:
        raise UnreadableInput(f"{path}: {reason(error)} (expected {expected})") from None


def json_of(path: Path, *, limit: float = MAX_CONFIG_BYTES) -> Any:
    """The value of a JSON file."""
    text = text_of(path, expected="JSON", limit=limit)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise UnreadableInput(f"{path}: {place}: not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{path}: not JSON ({short(error)})") from None


def json_object_of(path: Path) -> dict[str, Any]:
    """A JSON file that must hold an object."""
    value = json_of(path)
    if not isinstance(value, dict):
        raise UnreadableInput(f"{path}: expected a JSON object, found {kind_of(value)}")
    return cast(dict[str, Any], value)


def config_of(path: Path) -> dict[str, Any]:
    """A configuration file, JSON or YAML, that must hold named settings."""
    text = text_of(path, expected="a JSON or YAML configuration")
    value = json_of(path) if text.lstrip()[:1] in ("{", "[") else _yaml(path, text)
    if not isinstance(value, Mapping):
        raise UnreadableInput(f"{path}: expected named settings (JSON object or YAML mapping), found {kind_of(value)}")
    return {str(k): v for k, v in cast(Mapping[Any, Any], value).items()}


def _yaml(path: Path, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1} column {mark.column + 1}" if mark else "somewhere"
        raise UnreadableInput(f"{path}: {place}: neither JSON nor YAML ({error.problem})") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableInput(f"{path}: neither JSON nor YAML ({short(error)})") from None


def real(data: Mapping[str, Any], key: str, file: str) -> float | None:
    """A finite number; None when absent, null or "auto". A string such as "1e-5" (YAML's reading of 1e-5) counts."""
    value = data.get(key)
    if value is None or value == "auto":
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
    if value is None or value == "auto" or isinstance(value, bool):
        return value if isinstance(value, bool) else None
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    answer = words.get(str(value).strip().lower())
    if answer is None:
        raise UnreadableInput(f"{file}: {key}: {short(repr(value))} (expected true or false)")
    return answer


def word(data: Mapping[str, Any], key: str) -> str | None:
    """A string; None for anything else and for "auto"."""
    value = data.get(key)
    return value if isinstance(value, str) and value != "auto" else None


def section(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A nested group of settings, empty where there is none."""
    value = data.get(key)
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def kind_of(value: Any) -> str:
    """What a JSON value is, in a word."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "nothing" if value is None else next((n for t, n in names.items() if type(value) is t), "something else")


def reason(error: OSError) -> str:
    """Why a file could not be opened, in lower case and without the path."""
    return (error.strerror or type(error).__name__).lower()


def short(text: object) -> str:
    """One line of at most 100 characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= 100 else line[:97] + "..."
