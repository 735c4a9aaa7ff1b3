"""`finitune.repair`: one remedy applied, or every patch that `check` proposes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finitune.chapter import Chapter, causes, remedies
from finitune.finding import UnreadableInput
from finitune.repairs.casts import cast_weights
from finitune.repairs.configs import repair_configs
from finitune.repairs.data import repair_data
from finitune.repairs.from_run import repair_from_run
from finitune.repairs.outputs import places
from finitune.repairs.result import RepairResult
from finitune.repairs.weights import repair_rows
from finitune.sources.configs.runs import Config
from finitune.sources.gather import gather, gather_each
from finitune.sources.text import short

Ids = Sequence[int] | str
MAX_RANGE = 1_000_000
"""No vocabulary is larger."""
_NUMBER_OR_RANGE = re.compile(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*")

OPTIONS = {
    None: ("model", "data", "config", "gpu", "requirements", "patch", "apply", "unsafe"),
    "weights": ("model", "output", "dtype", "modules"),
    "rows": ("model", "data", "config", "output", "tokens", "like", "seed"),
    "data": ("model", "data", "config", "output", "rows", "seed"),
}
"""What a remedy rewrites -> the input that it needs; None: it sets keys of configurations."""


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
    from_run: str | Path | None = None,
    unsafe: bool = False,
) -> RepairResult:
    """Apply the remedy `name`. Ids may be numbers or text such as "6,7,10-12".

    Models and data are rewritten as a copy. Without `tokens` (or `rows`) those are taken that `finitune check` finds
    in `model`, `data` and `config`. Settings are changed by `patch`, which only tells, or `apply`, which keeps the
    originals beside the patched files; without a `name` the safe patches of errors and warnings are taken, and the
    others too where `unsafe` says so. `from_run` is the recording of a run in mode heal: what healed it is patched into
    `config`, or returned as what is to be done by hand.
    Raises UnreadableInput when something needed is absent or wrong, and when `output` is already there.

    For instance: `finitune.repair("reinit-token-rows", model="base", tokens=[6, 7], output="base-repaired")`.
    """
    configs: Sequence[Config] = [config] if isinstance(config, str | Path | dict) else list(config or ())  # pyright: ignore[reportAssignmentType, reportArgumentType]
    if from_run is not None:
        if name is not None:
            raise UnreadableInput(f"{name}: --from takes what healed the run (expected no name beside it)")
        if apply and not configs:
            raise UnreadableInput("--apply: which files? (expected --config FILE)")
        return repair_from_run(from_run, configs, model, apply=apply)
    chapter = _remedy(name) if name is not None else None
    rewrites: str | None = getattr(chapter.module, "rewrites", None) if chapter else None
    if patch and apply:
        raise UnreadableInput("--patch and --apply: one of the two (the first only tells what the second would do)")
    if rewrites and (patch or apply):
        raise UnreadableInput(f"{name}: writes a copy and patches nothing (expected --output, not --patch or --apply)")
    if not (rewrites or patch or apply):
        raise UnreadableInput(
            f"{name or 'repair'}: --patch or --apply is needed (the first shows the change, the second makes it)"
        )
    given = {
        "model": model, "data": data, "tokens": tokens, "rows": rows, "config": config, "output": output, "seed": seed,
        "gpu": gpu, "requirements": requirements, "patch": patch, "apply": apply, "like": like, "dtype": dtype,
        "modules": modules, "unsafe": unsafe,
    }  # fmt: skip
    unused = [option for option, value in given.items() if value and option not in OPTIONS[rewrites]]
    if unused:
        takes = ", ".join(f"--{option}" for option in OPTIONS[rewrites])
        raise UnreadableInput(f"{name or 'repair'}: --{unused[0]} says nothing here (expected of {takes})")
    if chapter is None or rewrites is None:
        runs = gather_each(*configs, model=model, data=data, gpu=gpu, requirements=requirements)
        return repair_configs(chapter, [reading for _, reading in runs], configs, model, apply=apply, unsafe=unsafe)
    if rewrites == "data":
        source, target = places(chapter.name, data, output, "--data FILE")
        chosen = _ids(rows, "--rows") or _found(chapter.name, "rows", configs, model, data)
        return repair_data(chapter, source, target, chosen, seed)
    source, target = places(chapter.name, model, output, "--model DIR")
    if rewrites == "weights":
        return cast_weights(chapter, source, target, dtype, modules)
    chosen = _ids(tokens, "--tokens") or _found(chapter.name, "tokens", configs, model, data)
    related = _ids(like, "--like", ordered=True)
    if related and len(related) != len(chosen):
        raise UnreadableInput(f"--like: {len(related)} tokens (expected one for each of {len(chosen)} tokens)")
    return repair_rows(chapter, source, target, chosen, related, seed)


def _found(
    name: str, field: str, configs: Sequence[Config], model: str | Path | None, data: str | Path | None
) -> list[int]:
    """The ids that the causes with this remedy find in what is given."""
    if data is None:
        raise UnreadableInput(f"{name}: what to repair? (expected --{field} 6,7, or --data FILE to find them)")
    reading = gather(*configs, model=model, data=data)
    facts = reading.facts
    if field == "rows" and facts.labels is not None:
        ids = set(np.flatnonzero(facts.labels.supervised == 0).tolist())
    else:
        ids = _ids_of_findings(name, field, facts.by_name())
    if not ids:
        unread = "".join(f"; not checked: {one.why}" for one in reading.not_checked if one.input == "data")
        found = f"nothing to repair was found here{unread}"
        raise UnreadableInput(f"{data}: {name}: {found} (give --{field} to choose by hand)")
    return sorted(ids)


def _ids_of_findings(name: str, field: str, inputs: Mapping[str, Any]) -> set[int]:
    concerned = [chapter for chapter in causes().values() if name in chapter.declared("remedies")]
    found = [finding for chapter in concerned for finding in chapter.ask("foresee", inputs).results]
    return {i for finding in found for i in (getattr(finding.where, field) or ())}


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
