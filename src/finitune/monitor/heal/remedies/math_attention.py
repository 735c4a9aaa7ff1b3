"""Attention runs with another kernel than the one that is wrong, from now on.

A model of transformers with a kernel of its own (`flash_attention_2`, a custom one) takes torch's, else plain
mathematics, with the masks that belong to it. Where the kernel is torch's, the modules of the kind that made the first
bad value compute `scaled_dot_product_attention` by plain mathematics. Needs: modules that run as they are written.
Price: speed, and for plain mathematics memory for the scores. Undo: each configuration and forward is its own again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from finitune.monitor.heal.cure import Case, Change, Cure, Unable, Undo, for_one_run
from finitune.monitor.heal.forwards import run_within
from finitune.monitor.optimizers import Watched
from finitune.monitor.replay.attention import PLAIN, TORCHS, by_mathematics, kernel_of, on_copies, take_kernel
from finitune.reports.sentences import counted

action = "healed"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    model, origin = case.watched.model, case.inquiry.origin
    if model is None or origin is None or not origin.module:
        raise Unable("the first bad value was not seen in a module")
    case.refuse_compiled()
    kernel = kernel_of(model)
    if kernel == PLAIN:
        raise Unable("attention is plain mathematics already")
    if kernel in (None, TORCHS):
        kind = type(model.get_submodule(origin.module))
        names = [name for name, part in model.named_modules() if name and type(part) is kind]
        text = f"{TORCHS} by plain mathematics from now on ({counted(len(names), kind.__name__)})"
        orders = {"modules": names}
        return _cure(case, text, change=for_one_run(lambda model: _applied(model, orders)), orders=orders)
    for name in (TORCHS, PLAIN):
        if case.finite(_with_kernel(name)):
            text = f"{name} attention from now on (was {kernel})"
            patch = {"attn_implementation": name}
            return _cure(case, text, change=_with_kernel(name), orders={"kernel": name}, patch=patch)
    raise Unable("the captured step is finite with none of torch's kernels")


def repeat(watched: Watched, orders: Mapping[str, Any]) -> Undo:
    """The same on every rank."""
    assert watched.model is not None
    return _applied(watched.model, orders)


def _applied(model: nn.Module, orders: Mapping[str, Any]) -> Undo:
    if "kernel" in orders:
        return take_kernel(model, orders["kernel"])
    return run_within([model.get_submodule(name) for name in orders["modules"]], by_mathematics)


def _cure(
    case: Case, text: str, *, change: Change, orders: Mapping[str, Any], patch: Mapping[str, Any] | None = None
) -> Cure:
    model = case.watched.model
    assert model is not None
    plain = orders.get("kernel") != TORCHS
    return Cure(
        text=text,
        price="another kernel's speed" + (", memory for the scores of each layer" if plain else ""),
        targets=frozenset({"attention"}),
        change=change,
        placebo=lambda _: on_copies(model),
        instead="its own kernel on copies of its inputs",
        apply=lambda: _applied(model, orders),
        orders=orders,
        patch=patch,
    )


def _with_kernel(name: str) -> Change:
    return for_one_run(lambda model: take_kernel(model, name))
