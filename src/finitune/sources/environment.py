"""Versions of the packages a fine-tune stands on: of this environment, or of a requirements or lock file."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from finitune.finding import UnreadableInput
from finitune.sources.text import kind_of, settings_of, short, text_of, why_not

RELEVANT = (
    "torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "datasets", "tokenizers", "safetensors",
    "bitsandbytes", "flash-attn", "xformers", "triton", "liger-kernel", "torchao", "transformer-engine", "apex",
    "unsloth", "unsloth-zoo", "lightning", "pytorch-lightning", "ludwig", "axolotl", "llamafactory", "vllm",
    "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "numpy",
)  # fmt: skip

_CONDA = re.compile(r"^(?:[\w.-]+::)?([A-Za-z0-9][\w.-]*)\s*={1,2}\s*([0-9][^\s,;=*]*)(?:=[^=]*|\.\*)?$")
CONDA_NAMES = {"pytorch": "torch"}
"""What conda calls differently."""


def read(requirements: str | Path | None = None) -> dict[str, str]:
    """Package -> version, for the relevant ones. Nothing is imported.

    `requirements` is a requirements.txt (only exact pins tell a version), `uv.lock`, `poetry.lock`, `pylock.toml`,
    `Pipfile.lock` or conda's `environment.yml`. Raises UnreadableInput for a file that is none of them.
    """
    found = _installed() if requirements is None else _listed(Path(requirements))
    return {name: found[name] for name in RELEVANT if name in found}


def _installed() -> dict[str, str]:
    return {name: version for name in RELEVANT if (version := _version(name))}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _listed(path: Path) -> dict[str, str]:
    text = text_of(path, expected="requirements or a lock file")
    if text.lstrip().startswith("{"):
        return _pipfile_lock(path, text)
    if path.suffix in (".lock", ".toml"):
        return _toml_lock(path, text)
    if path.suffix in (".yml", ".yaml"):
        return _conda(path, text)
    return _requirements(path, text)


def _requirements(path: Path, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, raw in enumerate(text.replace("\\\n", " \n").splitlines(), start=1):
        line = re.split(r"(?:^|\s)#|\s--", raw, maxsplit=1)[0].strip().rstrip("\\").strip()
        if not line or line.startswith(("-", ".", "/")) or "://" in line:
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            conda = _CONDA.match(line)  # `conda list --export` is called a requirements file too
            if conda is None:
                raise UnreadableInput(
                    f"{path}: line {number}: {short(repr(line))} (expected a requirement such as torch==2.6.0)"
                ) from None
            found[canonicalize_name(conda[1])] = conda[2]
            continue
        for one in requirement.specifier:
            if one.operator in ("==", "===") and "*" not in one.version:
                found[canonicalize_name(requirement.name)] = one.version.removeprefix("v")
    return found


def _conda(path: Path, text: str) -> dict[str, str]:
    """Conda's environment.yml: `name=version` or `name=version=build`, and pip's own list below `pip`."""
    listed = settings_of(path, text).get("dependencies")
    if not isinstance(listed, list):
        raise UnreadableInput(f"{path}: dependencies: expected a list, found {kind_of(listed)}")
    found: dict[str, str] = {}
    for entry in cast(list[Any], listed):
        if isinstance(entry, str) and (match := _CONDA.match(entry.strip())):
            found[CONDA_NAMES.get(name := canonicalize_name(match[1]), name)] = match[2]
        pip: Any = cast(Mapping[str, Any], entry).get("pip") if isinstance(entry, Mapping) else None
        lines = [line for line in cast(list[Any], pip) if isinstance(line, str)] if isinstance(pip, list) else []
        found |= _requirements(path, "\n".join(lines))
    return found


def _toml_lock(path: Path, text: str) -> dict[str, str]:
    """Names and versions of the `[[package]]` tables (`[[packages]]` in pylock.toml)."""
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        data: Mapping[str, Any] = toml.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{path}: not TOML ({why_not(error)})") from None
    tables = data.get("package", data.get("packages"))
    if not isinstance(tables, list):
        raise UnreadableInput(f"{path}: no packages (expected uv.lock, poetry.lock or pylock.toml)")
    found: dict[str, str] = {}
    for table in cast(list[Any], tables):
        entry: Mapping[str, Any] = cast("Mapping[str, Any]", table) if isinstance(table, Mapping) else {}
        name, version = entry.get("name"), entry.get("version")
        if isinstance(name, str) and isinstance(version, str):
            found[canonicalize_name(name)] = version
    return found


def _pipfile_lock(path: Path, text: str) -> dict[str, str]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{path}: not JSON ({why_not(error)})") from None
    found: dict[str, str] = {}
    for group in ("default", "develop"):
        packages = data.get(group)
        for name, entry in cast(Mapping[str, Any], packages).items() if isinstance(packages, Mapping) else ():
            version = cast(Mapping[str, Any], entry).get("version") if isinstance(entry, Mapping) else None
            if isinstance(version, str) and version.startswith("=="):
                found[canonicalize_name(name)] = version[2:]
    return found
