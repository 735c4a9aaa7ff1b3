"""PEFT: AdaLoRA ranks its adapters by the gradients of each step, in averages that a single NaN would end.

Under `finitune run` the gradients of a discarded step change none of them.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from finitune.monitor.process import active

AFTER = ("peft.tuners.adalora.layer",)
AVERAGES = ("ipt", "exp_avg_ipt", "exp_avg_unc")


def attach() -> None:
    """Watch over the averages of all allocators of ranks."""
    allocator = sys.modules[AFTER[0]].RankAllocator
    update = allocator.update_ipt

    @functools.wraps(update)
    def update_ipt(self: Any, model: Any) -> None:
        before = {name: dict(getattr(self, name)) for name in AVERAGES}
        update(self, model)
        if _is_of_discarded_step(model):
            for name, kept in before.items():
                averages = getattr(self, name)
                averages.update({key: kept.get(key, value.new_zeros(value.shape)) for key, value in averages.items()})

    allocator.update_ipt = update_ipt


def _is_of_discarded_step(model: Any) -> bool:
    monitor = active()
    if monitor is None:
        return False
    try:
        return monitor.has_discarded(model.parameters())
    except Exception as error:
        monitor.broken(error)
        return False
