"""The modules that leave the range of float16 compute in float32; their weights and the checkpoint keep their dtype.

The set is grown from the place of the first bad value, following the overflow, and then made as small as it can be: no
module of it can be left out. Needs: modules that this process holds whole and runs as they are written. Price: the
time and memory of these modules in float32. Undo: their forward is their own again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from finitune.monitor.heal.cure import Case, Change, Cure, Unable, for_one_run
from finitune.monitor.heal.float32_forward import compute_in_float32, half_bytes
from finitune.monitor.heal.undo import Undo, of_all
from finitune.monitor.optimizers import Watched
from finitune.monitor.origin.locate import locate
from finitune.monitor.probes.ranks import is_sharded
from finitune.reports.sentences import counted

action = "healed"
MOST_MODULES = 8
"""A set that grows beyond it is no matter of single modules; the run wants bfloat16."""
MANY = 0.5
"""The same for this share of the modules that hold weights."""


def cure(case: Case) -> Cure:
    """Raises Unable."""
    model, origin = case.watched.model, case.inquiry.origin
    if model is None or origin is None or not origin.module or origin.phase != "forward":
        raise Unable("the overflow was not seen in the forward of a module")
    if is_sharded([*model.parameters()]):
        raise Unable("the model is held in parts")
    case.refuse_compiled()
    names = _fewest(case, _grown(case, model, origin.module))
    own, total = _with_weights([model.get_submodule(name) for name in names]), _with_weights([model])
    if own > MANY * total:
        raise Unable(f"only {own} of {total} modules in float32 make the step finite, which is most of the model")
    others = _others(model, names)
    if not others:
        raise Unable("there is no other module to compare with")
    return Cure(
        text=f"{', '.join(names)} computes in float32 from now on ({own} of {counted(total, 'module')} with weights)",
        price=_price(model, names),
        targets=frozenset(names),
        change=in_float32(names),
        placebo=in_float32(others),
        instead=f"{', '.join(others)} in float32 instead",
        apply=lambda: _applied(model, names),
        orders={"modules": names},
        patch={"float32_modules": list(names)},
    )


def repeat(watched: Watched, orders: Mapping[str, Any]) -> Undo:
    """The same modules on every rank."""
    assert watched.model is not None
    return _applied(watched.model, orders["modules"])


def in_float32(names: Sequence[str]) -> Change:
    """Exactly what is applied to the run, for the time of one run of the step."""
    return for_one_run(lambda model: _applied(model, names))


def _applied(model: nn.Module, names: Sequence[str]) -> Undo:
    return of_all(compute_in_float32(model.get_submodule(name)) for name in names)


def _grown(case: Case, model: nn.Module, first: str) -> list[str]:
    """Modules that make the step finite together: each next one is where the first bad value is with those before.

    A module that leaves the range by what it returns is replaced by the one around it.
    """
    names = [first]
    while not case.finite(in_float32(names)):
        case.inquiry.limits.check()
        case.runs += 1
        try:
            with in_float32(names)(case.inquiry.setting()):
                origin = locate(case.inquiry.setting()).origin
        except Exception as error:  # a module that cannot be run so
            raise Unable(f"{names[-1]} does not run in float32 ({type(error).__name__})") from None
        if origin is None or origin.phase != "forward" or origin.module is None:
            raise Unable("the step is not finite with the modules that overflow in float32")
        name = origin.module
        while name and any(name == known or name.startswith(f"{known}.") for known in names):
            name = name.rpartition(".")[0]
        if not name:
            raise Unable("only the whole model in float32 would do")
        names = [*(known for known in names if not known.startswith(f"{name}.")), name]
        if len(names) > MOST_MODULES:
            raise Unable(f"more than {MOST_MODULES} modules leave the range of float16")
    return names


def _fewest(case: Case, names: list[str]) -> list[str]:
    """None of them can be left out: delta debugging down to single modules, a set that was grown is near minimal."""
    for name in list(names) if len(names) > 1 else ():
        rest = [other for other in names if other != name]
        if rest and case.finite(in_float32(rest)):
            names = rest
    return names


def _others(model: nn.Module, names: Sequence[str]) -> list[str]:
    """As many modules of the same kinds elsewhere, else any others with weights, that neither hold nor are held."""
    free = [
        (name, part) for name, part in model.named_modules()
        if name and all(name != n and not name.startswith(f"{n}.") and not n.startswith(f"{name}.") for n in names)
        and next(part.parameters(), None) is not None
    ]  # fmt: skip
    chosen: list[str] = []
    for name in names:
        kind = type(model.get_submodule(name))
        left = [(other, part) for other, part in free if other not in chosen]
        like = [other for other, part in left if type(part) is kind]
        chosen += (like or [other for other, _ in left])[:1]
    return chosen


def _with_weights(modules: Sequence[nn.Module]) -> int:
    return sum(any(p is not None for p in part._parameters.values()) for each in modules for part in each.modules())


def _price(model: nn.Module, names: Sequence[str]) -> str:
    """Of weights in half precision a copy in float32 while a module computes."""
    extra = 2 * sum(half_bytes(model.get_submodule(name)) for name in names)
    whole = sum(p.nbytes for p in model.parameters())
    copies = f", +{extra / whole:.1%} of the weights' memory while they compute" if extra else ""
    return f"{counted(len(names), 'module')} in float32{copies}"
