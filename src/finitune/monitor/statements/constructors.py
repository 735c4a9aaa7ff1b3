"""The operator with which the constructor of a module has made a buffer bad, computed again of what that keeps."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from finitune.finding import Origin
from finitune.monitor.probes.modules import Modules
from finitune.monitor.statements.attribute_writers import made_by_writers
from finitune.monitor.statements.plain_functions import maker_of
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
    given = {name: _argument(module, one) for name, one in list(inspect.signature(made).parameters.items())[1:]}
    return maker_of(buffer, lambda evaluation: evaluation.result(MethodType(made, module), **given))


def _argument(module: nn.Module, parameter: inspect.Parameter) -> Any:
    default = MISSING if parameter.default is inspect.Parameter.empty else parameter.default
    return vars(module).get(parameter.name, vars(module).get(f"_{parameter.name}", default))
