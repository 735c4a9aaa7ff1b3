"""What the placeholders of an experiment's arm stand for in one incident: modules, embedding rows, tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from finitune.finding import Origin
from finitune.naming import tower_of

ORDINARY = 0.1


def placeholders(model: nn.Module | None, origin: Origin | None, facts: Any) -> Mapping[str, str | None]:
    """Placeholder -> its value, None where it has none here. `facts` are those of the incident, as JSON."""
    from finitune.facts import Facts
    from finitune.facts_json import facts_from_json
    from finitune.flipped_bits import flipped

    known = facts_from_json(facts) if isinstance(facts, Mapping) else Facts()
    module = origin.module if origin else None
    short, others = _short_and_other_rows(known)
    odd, found = _odd_tensor(origin, known), flipped(known.weights)
    changed = found[0].name if found is not None else None
    return {
        "{origin}": module or None,
        "{sibling}": _sibling(model, module) if module and model is not None else None,
        "{tower}": tower_of(module) if module else None,
        "{short_rows}": short,
        "{other_rows}": others,
        "{tensor}": odd,
        "{other_tensor}": None if model is None else _other_tensor(model, odd),
        "{flipped}": changed,
        "{not_flipped}": None if model is None else _other_tensor(model, changed),
    }


def _short_and_other_rows(facts: Any) -> tuple[str | None, str | None]:
    """Ids of the batch's rows that are far shorter than usual, and as many of its ordinary ones."""
    from finitune.facts import NEVER_TRAINED

    rows = facts.rows
    if rows is None or not rows.median_rms > 0:
        return None, None
    short = rows.ids[rows.rms < NEVER_TRAINED * rows.median_rms][:64]
    others = rows.ids[rows.rms > ORDINARY * rows.median_rms][: len(short)]
    join = lambda ids: ",".join(map(str, ids.tolist())) or None  # noqa: E731
    return join(short), join(others)


def _sibling(model: nn.Module, module: str) -> str | None:
    """A module of the same kind elsewhere: the same path with another layer number."""
    parts = module.split(".")
    for place, part in enumerate(parts):
        if not part.isdigit():
            continue
        for other in (int(part) - 1, int(part) + 1):
            path = ".".join([*parts[:place], str(other), *parts[place + 1 :]])
            try:
                if other >= 0 and type(model.get_submodule(path)) is type(model.get_submodule(module)):
                    return path
            except AttributeError:
                continue
    return None


def _odd_tensor(origin: Origin | None, facts: Any) -> str | None:
    """The tensor that is itself the origin, else the one whose peak stands out most."""
    if origin is not None and origin.phase == "parameter":
        return origin.tensor
    tensors = facts.weights.tensors if facts.weights else ()
    return next((scan.name for scan in tensors), None)


def _other_tensor(model: nn.Module, name: str | None) -> str | None:
    """Another parameter, of the same shape where there is one."""
    named = dict(model.named_parameters())
    if name not in named:
        return None
    others = [other for other in named if other != name]
    return next((other for other in others if named[other].shape == named[name].shape), next(iter(others), None))
