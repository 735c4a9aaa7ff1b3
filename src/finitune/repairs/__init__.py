"""Cures that rewrite files: a repaired copy of a model or of data, patched settings, and the way back.

A copy is made under a temporary name beside the output and renamed when it is sound, so the output is whole or
absent. What a remedy changes is its own business (`apply`, or the patch of its cure).
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finitune.chapter import Chapter, ask, causes, remedies
from finitune.finding import Finding, UnreadableInput
from finitune.repairs.casts import cast_weights
from finitune.repairs.configs import repair_configs
from finitune.repairs.data import repair_data
from finitune.repairs.outputs import places
from finitune.repairs.result import Change, RepairResult
from finitune.repairs.undoing import undo
from finitune.repairs.weights import repair_rows
from finitune.sources.gather import Config, gather, gather_each
from finitune.sources.text import short

__all__ = ["Change", "RepairResult", "repair", "undo"]

Ids = Sequence[int] | str
MAX_RANGE = 1_000_000
"""No vocabulary is larger."""
_NUMBER_OR_RANGE = re.compile(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*")


def repair(
    name: str | None = None,
    *,
    model: str | Path | None = None,
    data: str | Path | None = None,
    tokens: Ids | None = None,
    rows: Ids | None = None,
    config: Config | Sequence[Config] | None = None,
    output: str | Path | None = None,
    seed: int = 0,
    gpu: str | None = None,
    requirements: str | Path | None = None,
    patch: bool = False,
    apply: bool = False,
    like: Ids | None = None,
    dtype: str | None = None,
    modules: str | Sequence[str] | None = None,
) -> RepairResult:
    """Apply the remedy `name`. Ids may be numbers or text such as "6,7,10-12".

    Models and data are rewritten as a copy. Without `tokens` (or `rows`) those are taken that `finitune check` finds
    in `model`, `data` and `config`. Settings are changed by `patch`, which only tells, or `apply`, which keeps the
    originals beside the patched files; without a `name` every patch of check is taken.
    Raises UnreadableInput when something needed is absent or wrong, and when `output` is already there.
    """
    configs: Sequence[Config] = [config] if isinstance(config, str | Path | dict) else list(config or ())  # pyright: ignore[reportAssignmentType, reportArgumentType]
    chapter = _remedy(name) if name is not None else None
    rewrite = chapter.function("apply") if chapter else None
    if patch and apply:
        raise UnreadableInput("--patch and --apply: one of the two (the first only tells what the second would do)")
    if rewrite is None:
        if not (patch or apply):
            raise UnreadableInput(
                f"{name or 'repair'}: --patch or --apply is needed (the first shows the change, the second makes it)"
            )
        given = gather_each(*configs, model=model, data=data, gpu=gpu, requirements=requirements)
        readings = [reading for _, reading in given]
        return repair_configs(chapter, readings, configs, model, apply=apply)
    assert chapter is not None
    if patch or apply:
        raise UnreadableInput(f"{name}: writes a copy and patches nothing (expected --output, not --patch or --apply)")
    asks = inspect.signature(rewrite).parameters
    if "values" in asks:
        source, target = places(chapter.name, model, output, "--model DIR")
        return cast_weights(chapter, source, target, dtype, modules)
    if "blocks" in asks:
        source, target = places(chapter.name, model, output, "--model DIR")
        chosen = _ids(tokens, "--tokens") or _found(chapter.name, "tokens", configs, model, data)
        related = _ids(like, "--like", ordered=True)
        if related and len(related) != len(chosen):
            raise UnreadableInput(f"--like: {len(related)} tokens (expected one for each of {len(chosen)} tokens)")
        return repair_rows(chapter, source, target, chosen, related, seed)
    source, target = places(chapter.name, data, output, "--data FILE")
    chosen = _ids(rows, "--rows") or _found(chapter.name, "rows", configs, model, data)
    return repair_data(chapter, source, target, chosen, seed)


def _found(
    name: str, field: str, configs: Sequence[Config], model: str | Path | None, data: str | Path | None
) -> list[int]:
    """The ids that the causes with this remedy find in what is given."""
    if data is None:
        raise UnreadableInput(f"{name}: what to repair? (expected --{field} 6,7, or --data FILE to find them)")
    facts = gather(*configs, model=model, data=data).facts
    inputs = facts.by_name()
    if field == "rows" and facts.labels is not None:
        ids = set(np.flatnonzero(facts.labels.supervised == 0).tolist())
    else:
        ids = {i for finding in _findings(name, inputs) for i in (getattr(finding.where, field) or ())}
    if not ids:
        raise UnreadableInput(f"{data}: {name}: nothing to repair was found here (give --{field} to choose by hand)")
    return sorted(ids)


def _findings(name: str, inputs: dict[str, Any]) -> Iterator[Finding]:
    for chapter in causes().values():
        foresee = chapter.function("foresee")
        if foresee is not None and name in chapter.declared("remedies"):
            yield from ask(foresee, inputs).results


def _remedy(name: str) -> Chapter:
    found = remedies().get(name)
    if found is None:
        near = difflib.get_close_matches(name, list(remedies()), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UnreadableInput(f"{name}: no such remedy ({hint}expected one of {', '.join(remedies())})")
    return found


def _ids(ids: Ids | None, option: str, *, ordered: bool = False) -> list[int]:
    """Numbers, or text such as "6,7,10-12"; sorted and each once, unless they are `ordered`."""
    if ids is None:
        return []
    if not isinstance(ids, str):
        return [int(i) for i in ids] if ordered else sorted({int(i) for i in ids})
    out: list[int] = []
    for part in ids.split(","):
        match = _NUMBER_OR_RANGE.fullmatch(part)
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else ()
        if not 0 < len(numbers) <= MAX_RANGE:
            what = f"is no number and no range of at most {MAX_RANGE}"
            raise UnreadableInput(f"{option}: {short(repr(part.strip()))} {what} (expected for example 6,7,10-12)")
        out += numbers
    return out if ordered else sorted(set(out))
