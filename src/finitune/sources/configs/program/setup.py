"""What a Python program says about one training, as it is put together from its calls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from finitune.sources.configs.program.bindings import taken
from finitune.sources.configs.program.names import Call
from finitune.sources.configs.program.values import Computed, Defined, Reader, Record, Symbol
from finitune.sources.configs.program.written import line_of

FROM_HERE = {"torch", "transformers", "trl", "peft", "accelerate"}
"""Packages whose names are words of settings, such as torch.float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a program says about one training; the line of each key, and of what only running would tell."""

    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Settings of a Trainer, or of the loop that the program writes out, in the words of TrainingArguments."""
    trainer: bool = False
    """A Trainer of transformers runs the loop."""
    others: list[str | Mapping[str, Any]] = field(default_factory=list[str | Mapping[str, Any]])
    """Settings of Lightning, accelerate and DeepSpeed; files by their name."""
    precision: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields of Precision that a loop sets up by itself."""
    clips_scaled: list[int] = field(default_factory=list[int])
    """Lines that clip gradients which are still multiplied by the loss scale."""
    quantization: dict[str, Any] = field(default_factory=dict[str, Any])
    batching: dict[str, Any] = field(default_factory=dict[str, Any])
    adapters: list[str] = field(default_factory=list[str])
    """The kinds of adapters that are none of LoRA's."""
    tokens: list[str] = field(default_factory=list[str])
    """Tokens that are added to the vocabulary, those that only pad left out."""
    data: list[str] = field(default_factory=list[str])
    """Files and sets of data that it loads."""
    lines: dict[str, int] = field(default_factory=dict[str, int])
    computed: dict[str, Computed] = field(default_factory=dict[str, Computed])
    unused: set[str] = field(default_factory=set[str])


def take(
    reader: Reader, setup: Setup, into: dict[str, Any], call: Call, said: Mapping[str, Any],
    names: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Values of a call, each under its name and with the line that it is written in."""
    own = {keyword.arg: keyword.value for keyword in call.node.keywords}
    for key, value in said.items():
        name = names.get(key, key) if names else key
        line = own[key].lineno if key in own else call.line
        plain = worded(value, line)
        if isinstance(plain, Computed):
            setup.computed[name] = plain
        else:
            into[name] = plain
            line = line_of(reader, own[key], call.site) if key in own else line
        setup.lines[name] = line


def worded(value: Any, line: int) -> Any:
    """As a file of settings would have it; `Computed` for what it could not have."""
    if isinstance(value, Symbol):
        if value.name.partition(".")[0] not in FROM_HERE:
            return Computed(line)
        return value.name if value.name.startswith("torch.") else value.name.rpartition(".")[2].lower()
    if isinstance(value, Record | Defined):
        return Computed(line)
    if isinstance(value, Mapping):
        inner = {str(k): worded(v, line) for k, v in cast("Mapping[Any, Any]", value).items()}
        return {k: v for k, v in inner.items() if not isinstance(v, Computed)}
    if isinstance(value, list):
        parts = [worded(one, line) for one in cast(list[Any], value)]
        return next((one for one in parts if isinstance(one, Computed)), parts)
    return value


def number(value: Any) -> float | None:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if real and math.isfinite(value) else None


def only(said: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if key in keys}


def taken_call(reader: Reader, call: Call) -> bool:
    """Whether the call may run: it stands in no branch that the constants of the program rule out."""
    reader.begin()
    return taken(reader, call.site.blocks) is not False


def surely(reader: Reader, call: Call) -> bool:
    reader.begin()
    return taken(reader, call.site.blocks) is True


def first(reader: Reader, wanted: Iterable[Call]) -> Call | None:
    """The first one that may run; the one that surely does before it."""
    able = [call for call in wanted if taken_call(reader, call)]
    return next((call for call in able if surely(reader, call)), able[0] if able else None)
