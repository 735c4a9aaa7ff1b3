"""The next step seen live, operator by operator: the user's code and all its models, from the end of one optimizer step
to the next.

Works for any program, whatever the loss is computed with. Nothing is run twice; compiled functions run as they are
written for this one step.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from finitune.finding import Origin
from finitune.monitor.capture.step import Call
from finitune.monitor.origin.operator_watch import LIFTED, UNSEEN, OperatorWatch
from finitune.monitor.replay.limits import Limits
from finitune.monitor.user_code.source_line import running_frames

_HOOKS_FIRE_TWICE = r"Using `torch\.compile\(module\)` when there are global hooks"
_COMPILED = str(Path("torch", "_dynamo", "eval_frame.py"))
SECONDS = 600.0
"""A step under watch may take a hundred times as long as usual. After so long it goes on without."""


class LiveWatch:
    """Begins when it is made; `end` tells what was seen. One at a time."""

    def __init__(self, names: Mapping[int, str], modules: Mapping[int, str], calls: Callable[[], list[Call]]) -> None:
        self._began = time.monotonic()
        self._watch = OperatorWatch(names, calls, Limits(seconds=SECONDS), goes_on=True)
        self._modules = dict(modules)
        self._handles: list[Any] = []
        self._stance: Any = None
        self.compiled = False

    def begin(self) -> str | None:
        """Watch from now on; returns why that is not possible, None when it is."""
        if within_compiled():
            return "the one before ended within a compiled function"
        if _get_current_dispatch_mode_stack():
            return "the program runs under a dispatch mode of its own"
        self._handles = [
            nn.modules.module.register_module_forward_pre_hook(self._entered),
            nn.modules.module.register_module_forward_hook(self._left, always_call=True),
        ]
        if "torch._dynamo" in sys.modules:
            self.compiled = compiles()
            self._stance = torch.compiler.set_stance("force_eager")
        warnings.filterwarnings("ignore", message=_HOOKS_FIRE_TWICE)
        self._watch.__enter__()
        return None

    @property
    def watch(self) -> OperatorWatch:
        return self._watch

    def found(self, known: Origin | None, *, left: Origin | None, bad_loss: bool) -> Origin | None:
        """The first bad value; what the step has `left` bad where no operator was seen to make one. Of numbers that
        torch has not computed it is the input that is `known`, with the line that takes them in.
        """
        found = self._watch.found(bad_loss=bad_loss)
        if found is None or (found.op == UNSEEN and left is not None and left.phase == "parameter"):
            return left
        if found.op != LIFTED:
            return found
        return replace(known or replace(found, tensor="numbers taken in"), phase="input", op="input", line=found.line)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def end(self) -> None:
        """Stop watching. What the program itself has put on top of the watch stays."""
        if not self._handles:
            return
        above: list[Any] = []
        while (stack := _get_current_dispatch_mode_stack()) and self._watch in stack:
            if stack[-1] is self._watch:
                self._watch.__exit__(None, None, None)
                break
            above.append(_pop_mode())
        for mode in reversed(above):
            _push_mode(mode)
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None

    def idle(self) -> None:
        """Look at nothing more; `end` is still to come."""
        self._watch.blind = True

    def _entered(self, module: nn.Module, _args: Any) -> None:
        if id(module) not in self._modules and not self._watch.modules:  # of which the optimizer holds copies alone
            self._modules |= {id(inner): name for name, inner in module.named_modules() if name}
        name = self._modules.get(id(module))
        self._watch.guarded(partial(self._watch.entered, type(module).__name__ if name is None else name))

    def _left(self, module: nn.Module, _args: Any, output: Any) -> None:
        name = self._modules.get(id(module))
        self._watch.guarded(partial(self._watch.left, type(module).__name__ if name is None else name, output))


def compiles() -> bool:
    """True where some function of this process was compiled."""
    return "torch._dynamo" in sys.modules and sys.modules["torch._dynamo"].utils.counters["frames"]["ok"] > 0


def within_compiled() -> bool:
    """True where a compiled function has called us. When it returns, the compiler puts the dispatcher of this thread
    back to what it was when the function was called, so a mode that comes or goes in between leaves it inconsistent.
    """
    return any(frame.f_code.co_filename.endswith(_COMPILED) for frame in running_frames())
