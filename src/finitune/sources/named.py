"""Models and data as configurations name them -> where they lie on this machine; nothing is downloaded."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finitune.finding import NotChecked
from finitune.sources.configs.beside import beside
from finitune.sources.text import short

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
DATA_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".tsv", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What lies where: a path, or why there is none; `line` says whose word it is.

    What a configuration has `named` and cannot be read is said; what the user gave is refused.
    """

    path: Path | None = None
    named: bool = False
    missing: NotChecked | None = None
    line: str | None = None


def model_of(name: str, file: str) -> Found:
    """The model that `file` names: a directory, or a name on the hub that was downloaded before."""
    path = _folder(name, file)
    if path is not None:
        return Found(path=path, named=True, line=f"{path} as model, named by {file}")
    if is_hub_id(name) or not _looks_local(name):
        path = in_cache(name)
        if path is not None:
            return Found(
                path=path, named=True, line=f"{name} as model, named by {file}: the copy in the cache of the hub"
            )
        why = f"{short(name)}, which {file} names, is not on this machine: hf download it, or give --model DIR"
    else:
        why = f"{short(name)}, which {file} names, is no model directory here: give --model DIR"
    return Found(missing=NotChecked(input="model", why=why, given=True))


def data_of(name: str, file: str) -> Found:
    """The data that `file` names: a file, a directory with data, or a name on the hub, which is not read."""
    path = beside(file, name)
    folder = next((one for one in (Path(name), path) if one.is_dir()), None)
    if folder is not None:
        return in_folder(folder, f", named by {file}")
    if path.is_file():
        return Found(path=path, named=True, line=f"{path} as data, named by {file}")
    local = _looks_local(name) or Path(name).suffix in DATA_SUFFIXES
    where = "is not here" if local else "is a name on the hub"
    return Found(missing=NotChecked(input="data", why=f"{short(name)}, which {file} names, {where}: give --data FILE",
                                    given=True))  # fmt: skip


def in_folder(folder: Path, by: str = "") -> Found:
    """The file of data in a folder; of several the one named after training, else the first by name."""
    files = sorted(one for one in folder.iterdir() if one.suffix in DATA_SUFFIXES and one.is_file())
    if not files:
        why = f"{folder}{by} holds no file of data (expected {', '.join(DATA_SUFFIXES)})"
        return Found(missing=NotChecked(input="data", why=why, given=True))
    best = next((one for one in files if "train" in one.stem), files[0])
    rest = f"; {len(files) - 1} more files there were not read" if len(files) > 1 else ""
    return Found(path=best, named=bool(by), line=f"{best} as data{by}{rest}")


def is_hub_id(name: str) -> bool:
    """Whether it can only be a name on the hub: `owner/model`, and no folder `owner` here."""
    return HUB_ID.fullmatch(name) is not None and not Path(name).parent.exists()


def in_cache(name: str) -> Path | None:
    """The snapshot of a model that was downloaded before."""
    folder = _cache() / f"models--{name.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        revision = ""
    snapshots: Sequence[Path] = []
    if (folder / "snapshots").is_dir():
        snapshots = sorted((folder / "snapshots").iterdir())
    snapshots = [one for one in snapshots if one.name == revision] or snapshots
    return next((one for one in snapshots if (one / "config.json").is_file()), None)


def _cache() -> Path:
    """Where huggingface_hub keeps what it downloads."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if said := os.environ.get(name):
            return Path(said).expanduser()
    home = os.environ.get("HF_HOME")
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home or f"{caches}/huggingface").expanduser() / "hub"


def _folder(name: str, file: str) -> Path | None:
    path = beside(file, f"{name}/config.json").parent
    return path if (path / "config.json").is_file() else None


def _looks_local(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or name.count("/") > 1
