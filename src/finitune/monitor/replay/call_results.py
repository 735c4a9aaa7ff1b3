"""What the calls of a captured step return, whole: of it a loss whose graph was not read is computed by its source."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from finitune.monitor.capture.step import Call, Capture
from finitune.monitor.capture.step_calls import MAX_CALLS
from finitune.monitor.probes.modules import unwrapped
from finitune.monitor.replay.rerun import Setting, outputs_of

Results = dict[int, list[Any]]
"""By the identity of the module, unwrapped: what it returned, call by call."""


def calls_again(capture: Capture) -> list[Call]:
    """Those of the step; none where one cannot be made again as it was, or the later of a long chain are not known."""
    calls = [call for micro in capture.micro_steps for call in micro.calls]
    hidden = len(calls) >= MAX_CALLS or any(call.unfed is not None or call.overwritten for call in calls)
    return [] if hidden else calls


def results_of(setting: Setting) -> Results:
    """One extra forward of every call; empty where the calls cannot be made again as they were, or call one another.
    Raises what the model raises.
    """
    calls = calls_again(setting.capture)
    modules = list({id(call.module): call.module for call in calls}.values())
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        return {}
    found: list[tuple[nn.Module, Any]] = []

    def keep(module: nn.Module, _args: Any, result: Any) -> None:
        found.append((module, result))

    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        outputs_of(setting)
    finally:
        for handle in handles:
            handle.remove()
    results: Results = {}
    for module, result in found if len(found) == len(calls) else ():
        results.setdefault(id(unwrapped(module)), []).append(result)
    return results
