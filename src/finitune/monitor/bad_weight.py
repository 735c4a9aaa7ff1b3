"""A weight that is not finite when a program dies: often what it died of, whatever the exception says."""

from __future__ import annotations

from dataclasses import replace

from finitune.finding import Origin
from finitune.monitor.optimizers import Optimizers
from finitune.monitor.origin.locate import bad_leaf, named_tensors
from finitune.monitor.probes.modules import Modules


def bad_weight(modules: Modules, optimizers: Optimizers) -> Origin | None:
    """The first that is known, where it is known who wrote it: nobody since it was loaded, or the optimizer."""
    for watched in optimizers:
        modules.find(watched.parameters())
    named = [(modules.name(tensor), tensor) for root in modules.roots() for _, tensor in named_tensors(root)]
    try:
        origin = bad_leaf(named, ())
    except Exception:  # after an assert on a device no tensor can be read
        return None
    if origin is None:
        return None
    weight = next(tensor for name, tensor in named if name == origin.tensor)
    owner = next((watched for watched in optimizers if any(p is weight for p in watched.parameters())), None)
    if owner is None or not owner.steps:
        return origin
    by = f"{type(owner.optimizer()).__name__}.step"
    return replace(origin, op=by, phase="optimizer") if owner.wrote_last(weight) else None
