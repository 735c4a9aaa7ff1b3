"""The operator with which the constructor of a module has made a buffer bad, computed again of what that keeps."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from finitune.finding import Origin
from finitune.monitor.origin.operator_watch import OperatorWatch
from finitune.monitor.probes.modules import Modules
from finitune.monitor.statements.attribute_writers import made_by_writers
from finitune.monitor.statements.plain_functions import NOT_COMPUTED, Evaluation
from finitune.monitor.user_code.arithmetic import MISSING


def made_before(held: Origin, modules: Modules, *, is_first: bool) -> Origin | None:
    """What has made a buffer of a known module bad before this step: a statement since the step before, where there was
    one, or its constructor.
    """
    written = None if is_first else made_by_writers(held, modules)
    return written or made_by_constructor(held, modules.roots())


def made_by_constructor(held: Origin, roots: Iterable[nn.Module]) -> Origin | None:
    """Of a buffer that is `held` by one of these modules, or by one within; None where it does not come out again, bit
    for bit. An argument is known where an attribute has its name.
    """
    attribute = (held.tensor or "").rpartition(".")[2]
    modules = (module for root in roots for module in root.modules())
    for module in {id(one): one for one in modules}.values():
        buffer = module._buffers.get(attribute)
        if isinstance(buffer, Tensor) and not bool(buffer.isfinite().all()):
            made = _made(module, buffer)
            if made is not None:
                return replace(
                    held, phase="input", module=None, op=made.op, line=made.line, peak=made.peak, divisor=made.divisor
                )
    return None


def _made(module: nn.Module, buffer: Tensor) -> Origin | None:
    made = inspect.getattr_static(type(module), "__init__", None)
    if not isinstance(made, FunctionType):
        return None
    watch = OperatorWatch.of_arithmetic()
    evaluation = Evaluation(lambda: False, wanted=buffer)
    watch.line = lambda: evaluation.now
    given = {name: _argument(module, one) for name, one in list(inspect.signature(made).parameters.items())[1:]}
    with warnings.catch_warnings(), torch.no_grad(), watch, suppress(*NOT_COMPUTED):
        warnings.simplefilter("ignore")  # the program has had them
        evaluation.result(MethodType(made, module), **given)
    return watch.found(bad_loss=True) if evaluation.gave_wanted else None


def _argument(module: nn.Module, parameter: inspect.Parameter) -> Any:
    default = MISSING if parameter.default is inspect.Parameter.empty else parameter.default
    return vars(module).get(parameter.name, vars(module).get(f"_{parameter.name}", default))
