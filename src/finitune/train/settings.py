"""The file of `finitune train`: settings under TRL's own names, and a block `finitune:` with ours."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from finitune.finding import UnreadableInput
from finitune.sources.configs.known_keys import fields_of
from finitune.sources.named import data_of, model_of
from finitune.sources.text import config_of, kind_of, short

BLOCK = "finitune"
FORMAT = "training_arguments"
"""The format whose keys these are, as `check` knows it."""
_POWER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+")
"""1e-4, which YAML 1.1 reads as text."""

Mode = Literal["observe", "guard", "heal"]
CHOICES: Mapping[str, tuple[str, ...]] = {"mode": ("observe", "guard", "heal"), "signals": ("gate", "economy", "full")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """The block `finitune:`."""

    mode: Mode = "guard"
    signals: Literal["gate", "economy", "full"] = "economy"
    gpu: str | None = None
    """The card that the run is planned for, where it is not the one at hand."""
    run_dir: str | None = None
    """Where to record, by default `OUTPUT_DIR/finitune`."""
    float32_modules: tuple[str, ...] = ()
    """Modules that compute in float32 whatever the rest does."""
    repair_tokens: bool = True
    """Embedding rows that were never trained are drawn anew, in a copy of the model."""
    merge: bool = True
    """An adapter is merged into a copy of its base at the end."""
    report: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What the user wrote: `keys` are TRL's; `model` and `data` are where they lie."""

    file: Path
    keys: Mapping[str, Any]
    ours: Ours
    model: Path
    data: Path

    @property
    def output(self) -> Path:
        return Path(str(self.keys["output_dir"]))


def read(path: str | Path) -> Written:
    """The settings in a YAML or JSON file.

    Model and data are looked for from the working directory and beside the file; `output_dir` is taken from the
    working directory, as TRL takes it. Raises UnreadableInput for a key that is not known, and for a model or data
    that is not there.
    """
    path = Path(path)
    said = config_of(path)
    block: Any = said.pop(BLOCK, None) or {}
    if not isinstance(block, Mapping):
        raise UnreadableInput(f"{path}: {BLOCK}: expected named settings, found {kind_of(block)}")
    known = fields_of(FORMAT)
    assert known is not None
    for key in said:
        if key not in known.names:
            raise UnreadableInput(f"{_place(path, key)}: no such key ({_nearest(key, known.names)})")
    keys = {key: _number(value) for key, value in said.items() if value is not None}
    for key in ("model_name_or_path", "output_dir"):
        if not isinstance(keys.get(key), str):
            raise UnreadableInput(f"{path}: {key}: not there (expected {_EXPECTED[key]})")
    name = keys.get("dataset_name") or keys.get("data_files")
    if not isinstance(name, str):
        raise UnreadableInput(f"{path}: dataset_name: not there (expected a file of training data)")
    ours = _block(path, {str(k): v for k, v in cast("Mapping[Any, Any]", block).items()})
    model, data = model_of(keys["model_name_or_path"], str(path)), data_of(name, str(path))
    for key, found in (("model_name_or_path", model), ("dataset_name", data)):
        if found.path is None:
            what: Any = keys.get(key, name)
            raise UnreadableInput(
                f"{_place(path, key)}: {short(str(what))} is not on this machine (expected {_EXPECTED[key]})"
            )
    assert model.path
    assert data.path
    return Written(file=path, keys=keys, ours=ours, model=model.path, data=data.path)


_EXPECTED = {
    "model_name_or_path": "the directory of a model, or the name of one that was downloaded",
    "dataset_name": "a file of training data",
    "output_dir": "a directory to write to",
}


def identity(written: Written) -> str:
    """A digest of what decides the weights: the settings, and the bytes of the data."""
    found = hashlib.sha256()
    with written.data.open("rb") as file:
        while block := file.read(2**20):
            found.update(block)
    said = {key: value for key, value in written.keys.items() if key not in ("output_dir", "dataset_name")}
    text = json.dumps([said, str(written.ours.float32_modules), written.ours.mode], sort_keys=True, default=str)
    return hashlib.sha256(f"{found.hexdigest()} {text}".encode()).hexdigest()


def _block(path: Path, block: Mapping[str, Any]) -> Ours:
    kinds: Mapping[str, type] = {
        "mode": str, "signals": str, "gpu": str, "run_dir": str, "float32_modules": list, "repair_tokens": bool,
        "merge": bool, "report": bool,
    }  # fmt: skip
    for key, value in block.items():
        if key not in kinds:
            raise UnreadableInput(f"{_place(path, key)}: no such key of {BLOCK} ({_nearest(key, kinds)})")
        kind = kinds[key]
        if value is None:
            continue
        if type(value) is not kind:
            expected = "true or false" if kind is bool else "a list of names" if kind is list else "text"
            raise UnreadableInput(f"{_place(path, key)}: expected {expected}, found {kind_of(value)}")
        if key in CHOICES and value not in CHOICES[key]:
            raise UnreadableInput(
                f"{_place(path, key)}: {short(str(cast(Any, value)))} (expected one of {', '.join(CHOICES[key])})"
            )
    given = {key: value for key, value in block.items() if value is not None}
    if "float32_modules" in given:
        given["float32_modules"] = tuple(map(str, given["float32_modules"]))
    return Ours(**given)


def _place(path: Path, key: str) -> str:
    """The file, the line where it is known, and the key."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    number = next(
        (n for n, line in enumerate(lines, 1) if re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*:", line)), None
    )
    return f"{path}: {key}" if number is None else f"{path}: line {number}: {key}"


def _nearest(key: str, names: Any) -> str:
    near = difflib.get_close_matches(key[:80], sorted(names), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else "expected a key of TRL's SFTConfig, ModelConfig or ScriptArguments"


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and _POWER.fullmatch(value) else value
