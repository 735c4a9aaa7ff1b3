"""Versions of the packages a fine-tune stands on: of this environment, or of a requirements or lock file."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from finitune.finding import UnreadableInput
from finitune.sources.configs.beside import root_of
from finitune.sources.text import kind_of, section, settings_of, short, text_of, why_not

RELEVANT = (
    "torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "datasets", "tokenizers", "safetensors",
    "bitsandbytes", "flash-attn", "xformers", "triton", "liger-kernel", "torchao", "transformer-engine", "apex",
    "unsloth", "unsloth-zoo", "lightning", "pytorch-lightning", "ludwig", "axolotl", "llamafactory", "vllm",
    "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "numpy",
)  # fmt: skip

NAMED = ("torch", "transformers", "trl", "deepspeed", "lightning", "numpy")
"""Those of this environment that are named where it counts."""

PINS = (
    "uv.lock", "pdm.lock", "poetry.lock", "pylock*.toml", "Pipfile.lock", "requirements*.lock", "requirements.txt",
    "requirements*.txt", "environment.yml", "environment.yaml", "pyproject.toml",
)  # fmt: skip
"""Files that pin versions, those that pin all of them first."""

_CONDA = re.compile(r"^(?:[\w.-]+::)?([A-Za-z0-9][\w.-]*)\s*={1,2}\s*([0-9][^\s,;=*]*)(?:=[^=]*|\.\*)?$")
_EXACT = re.compile(r"={0,3}\s*(\d[\w.+!-]*)")
CONDA_NAMES = {"pytorch": "torch"}
"""What conda calls differently."""


def read(requirements: str | Path | None = None) -> dict[str, str]:
    """Package -> version, for the relevant ones. Nothing is imported.

    `requirements` is a requirements.txt (only exact pins tell a version), `uv.lock`, `poetry.lock`, `pylock.toml`,
    `Pipfile.lock` or conda's `environment.yml`. Raises UnreadableInput for a file that is none of them.
    """
    found = _installed() if requirements is None else _listed(Path(requirements))
    return {name: found[name] for name in RELEVANT if name in found}


def of_run(requirements: str | Path | None, files: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """The versions that hold for a run of these files, and whose word they are; None where there are none.

    Without `requirements` it is the first lock or requirements file of the project that pins one of the packages,
    beside the files or above them up to the root of the project; else this environment.
    """
    if requirements is not None:
        return read(requirements), f"{requirements} for the versions of packages"
    for path in _beside(files):
        try:
            found = read(path)
        except UnreadableInput:  # nobody gave it
            continue
        if found:
            return found, f"{_short(path)} for the versions of packages: --requirements says others"
    found = read()
    some = ", ".join(f"{name} {found[name]}" for name in NAMED if name in found)
    return (
        found,
        f"this environment ({some}) for the versions of packages: --requirements says others" if some else None,
    )


def _beside(files: Sequence[str]) -> Iterator[Path]:
    """Requirements and lock files in the folders of the project, the surest first."""
    first = next((Path(file).resolve().parent for file in files if Path(file).is_file()), None)
    if first is None:
        return
    root = root_of(first / "any")
    for folder in (one for one in (first, *first.parents) if one.is_relative_to(root)):
        listed = [path for pattern in PINS for path in sorted(folder.glob(pattern))]
        yield from (path for path in listed if path.is_file() and not path.is_symlink())


def _short(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


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
            found |= _pinned(line)
        except InvalidRequirement:
            conda = _CONDA.match(line)  # `conda list --export` is called a requirements file too
            if conda is None:
                raise UnreadableInput(
                    f"{path}: line {number}: {short(repr(line))} (expected a requirement such as torch==2.6.0)"
                ) from None
            found[canonicalize_name(conda[1])] = conda[2]
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
    if path.name == "pyproject.toml" and not isinstance(tables, list):
        return _project(data)
    if not isinstance(tables, list):
        raise UnreadableInput(f"{path}: no packages (expected uv.lock, pdm.lock, poetry.lock or pylock.toml)")
    found: dict[str, str] = {}
    for table in cast(list[Any], tables):
        entry: Mapping[str, Any] = cast("Mapping[str, Any]", table) if isinstance(table, Mapping) else {}
        name, version = entry.get("name"), entry.get("version")
        if isinstance(name, str) and isinstance(version, str):
            found[canonicalize_name(name)] = version
    return found


def _project(data: Mapping[str, Any]) -> dict[str, str]:
    """The exact pins among the dependencies of a pyproject.toml, Poetry's included."""
    listed: Any = section(data, "project").get("dependencies")
    lines = [line for line in cast(list[Any], listed) if isinstance(line, str)] if isinstance(listed, list) else []
    found = {name: version for line in lines for name, version in _pinned(line).items()}
    for name, said in section(section(section(data, "tool"), "poetry"), "dependencies").items():
        version: Any = cast("Mapping[str, Any]", said).get("version") if isinstance(said, Mapping) else said
        if isinstance(version, str) and (exact := _EXACT.fullmatch(version.strip())):
            found[canonicalize_name(name)] = exact[1]
    return found


def _pinned(line: str) -> dict[str, str]:
    """The package and its version, where the requirement names exactly one. Raises InvalidRequirement."""
    requirement = Requirement(line)
    exact = [one.version for one in requirement.specifier if one.operator in ("==", "===") and "*" not in one.version]
    return {canonicalize_name(requirement.name): exact[0].removeprefix("v")} if exact else {}


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
