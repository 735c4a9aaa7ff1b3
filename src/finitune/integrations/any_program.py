"""Any program that trains with PyTorch: an optimizer is watched from the moment it is made.

Used by `finitune run`. The model is the outermost module that holds all of the optimizer's parameters.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from finitune.gym.inject import inject
from finitune.monitor.gate import Monitor, watch
from finitune.monitor.probes.gc_objects import living

AFTER = ("torch",)


def attach() -> None:
    """Watch every optimizer that this process makes from now on; the environment says where and how."""
    mode: Any = os.environ.get("FINITUNE_MODE", "guard")
    injections = json.loads(os.environ.get("FINITUNE_INJECT", "[]"))
    make = Optimizer.__init__
    monitors: list[Monitor] = []

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        # One recording holds one optimizer; further ones get a directory of their own beside it.
        directory = Path(os.environ["FINITUNE_RUN_DIR"])
        place = directory if not monitors else directory / f"optimizer{len(monitors) + 1}"
        try:
            model = model_of(self)
            if model is None:
                return
            monitors.append(watch(model, self, run_dir=place, mode=mode))
            if len(monitors) == 1:
                inject(monitors[0], injections)
        except Exception as error:
            print(f"finitune: this optimizer is not watched ({type(error).__name__}: {error})", file=sys.stderr)

    Optimizer.__init__ = made


def model_of(optimizer: Any) -> nn.Module | None:
    """The outermost live module whose parameters include all of the optimizer's; None when there is none."""
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    holders = [
        module
        for module in living()
        if issubclass(type(module), nn.Module) and trained <= {id(p) for p in module.parameters()}
    ]
    inner = {id(child) for module in holders for child in module.modules() if child is not module}
    outermost = [module for module in holders if id(module) not in inner]
    return outermost[0] if outermost else None
