"""Objects of a running program (arguments, model, tokenizer) -> settings and files that `check` reads.

What an object saves of itself is read like any other model or data; it lies in a folder of its own for so long.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from finitune.finding import NotChecked, UnreadableInput

MODEL = "MODEL"
"""How the directory of a model is called that a program holds."""
MAX_WEIGHTS = 4 * 2**30
"""Bytes of weights that are written down to be read; of larger models only the configuration is."""


def settings_of(one: Any) -> Any:
    """A file or mapping as it is; of `TrainingArguments` and its kin what its `to_dict` says.

    Raises UnreadableInput for an object that says nothing of itself.
    """
    if isinstance(one, str | Path | Mapping):
        return cast("str | Path | Mapping[str, Any]", one)
    if not callable(getattr(one, "to_dict", None)):
        raise UnreadableInput(f"{type(one).__name__}: expected a file, a mapping, or arguments with to_dict()")
    return {key: value for key, value in one.to_dict().items() if value is not None}


def model_in(folder: Path, model: Any, tokenizer: Any) -> tuple[Path, list[NotChecked]]:
    """The directory of a model that is in memory, and what of it was left out. Raises UnreadableInput."""
    path, left = folder / MODEL, list[NotChecked]()
    path.mkdir()
    size = sum(one.numel() * one.element_size() for one in model.parameters()) if hasattr(model, "parameters") else 0
    if model is not None and not callable(getattr(model, "save_pretrained", None)):
        raise UnreadableInput(
            f"model: expected a directory or a model with save_pretrained(), found {type(model).__name__}"
        )
    if model is not None and (size > MAX_WEIGHTS or hasattr(model, "peft_config")):
        model.config.save_pretrained(path)
        why = "an adapter is around it" if hasattr(model, "peft_config") else f"{size / 2**30:.0f} GiB in memory"
        left.append(NotChecked(input="weights", why=f"only the configuration was read: {why}; give its directory"))
    elif model is not None:
        model.save_pretrained(path)
    if tokenizer is not None:
        tokenizer.save_pretrained(path)
    return path, left
