"""Find the origin of a captured step: a weight or input that is bad by itself, else the first operator that made it.

The step is run again, once, with every operator under watch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from finitune.finding import Origin, Phase
from finitune.monitor.capture.step import Call, Capture
from finitune.monitor.loss_graph.objective import Place
from finitune.monitor.origin.batch_places import bad_rows
from finitune.monitor.origin.operator_watch import Layer, OperatorWatch
from finitune.monitor.probes.finite import Places, is_finite, places, values_of
from finitune.monitor.probes.modules import Modules
from finitune.monitor.probes.names import dtype_name, parameter_names
from finitune.monitor.replay.call_results import calls_again
from finitune.monitor.replay.limits import Limits
from finitune.monitor.replay.rerun import Outcome, Setting, outputs_of, rerun

WRITTEN_BY_STEPS = 2
"""Of as many writes a buffer has more than what it was made and loaded with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The answer of one instrumented run."""

    origin: Origin | None
    outcome: Outcome
    layers: list[Layer]
    term: Place | None = None
    """Where in the loss outside of the model the origin lies."""
    failed: str | None = None
    """Why the run was not watched to its end."""
    inside: torch.dtype | None = None
    """The autocast dtype that the model's own forward turns on, as accelerate has it do."""


def locate(setting: Setting, *, spoilt: Collection[Tensor] = ()) -> Located:
    """Run the step once more, watching every operator. One extra forward and backward. `spoilt` are buffers that are
    taken for finite: where the loss was computed with one, as with a penalty that the model keeps, it is no operand.
    """
    calls = calls_of(setting.capture)
    own = parameter_names(setting.model)
    together = setting.group.split  # none may give up in the middle
    limits = Limits(seconds=math.inf) if together else setting.limits
    watch = OperatorWatch(own, lambda: calls, limits, goes_on=together)
    eager = replace(setting, eager=True)
    known = bad_leaf(named_tensors(setting.model), calls)
    watch.summed = lambda: None if eager.summing is None else own.get(id(eager.summing))
    outcome = rerun(eager, _watching(_named_modules(eager), watch))
    bad_loss = not all(map(math.isfinite, outcome.losses))
    leaf = known or _bad_input(watch, calls)
    found = watch.found(bad_loss=bad_loss)
    given = leaf is None and not _is_put_out(watch, found)  # else what the loop has put in may be made of it
    operand, place = _bad_operand(setting.capture, spoilt) if given else (None, None)
    origin = leaf or operand or found
    if outcome.passed or (watch.failed is not None and leaf is None):
        origin = None
    term = place if operand is not None else watch.term_of(origin)
    return Located(
        origin=origin,
        outcome=outcome,
        layers=watch.layers,
        term=term,
        failed=_unwatched(watch.failed),
        inside=watch.inside,
    )


def _is_put_out(watch: OperatorWatch, found: Origin | None) -> bool:
    """An operator of the model's forward has made it, and the model has put out values that are not finite."""
    made = found is not None and found.phase == "forward" and found.module is not None
    return made and any(layer.nonfinite and layer.module == "" for layer in watch.layers)


def _unwatched(error: Exception | None) -> str | None:
    return error and f"the step could not be watched: {type(error).__name__}: {str(error)[:200]}"


def locate_in_calls(setting: Setting) -> Origin | None:
    """The first operator within what the loop calls, where the loss that it computes of it cannot be run again; None
    where nothing that is put out is NaN or +inf. One extra forward.
    """
    calls = calls_again(setting.capture)
    if not calls:
        return None
    watch = OperatorWatch(parameter_names(setting.model), lambda: calls, setting.limits)
    eager = replace(setting, eager=True)
    with _watching(_named_modules(eager), watch):
        outputs = outputs_of(eager)
    bad = [places(t) for t in outputs if not is_finite(t)]
    return watch.found(bad_loss=True) if any(found.nan or found.inf for found in bad) else None


def _named_modules(setting: Setting) -> list[tuple[str, nn.Module]]:
    """Those of the model, and of the other modules that the loop calls, under the class of these."""
    named = list(setting.model.named_modules())
    for other in setting.models[1:]:
        kind = type(other).__name__
        named += [(f"{kind}.{name}" if name else kind, module) for name, module in other.named_modules()]
    return list({id(module): (name, module) for name, module in reversed(named)}.values())[::-1]


def calls_of(capture: Capture) -> list[Call]:
    return [call for micro in capture.micro_steps for call in micro.calls]


def named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters, and buffers but for the running statistics of a batch norm that trains: its forward writes them."""
    norms = [m for m in model.modules() if isinstance(m, _NormBase) and m.training]
    written = {id(buffer) for norm in norms for buffer in norm.buffers()}
    return [*model.named_parameters(), *((name, b) for name, b in model.named_buffers() if id(b) not in written)]


def all_named_tensors(model: nn.Module | None, modules: Modules) -> Iterator[tuple[str, Tensor]]:
    """Those of the model, then what other modules hold beside it."""
    own = [] if model is None else named_tensors(model)
    yield from own
    seen = {id(t) for _, t in own}
    for root in modules.roots():
        for _, tensor in named_tensors(root):
            if id(tensor) not in seen:
                yield modules.name(tensor), tensor


def bad_leaf(tensors: Iterable[tuple[str, Tensor]], calls: Iterable[Call]) -> Origin | None:
    """A parameter, input or buffer that is not finite before anything is computed. Nothing is run. What a batch holds
    comes before buffers: statistics that a forward keeps were bad after it. An infinity in a buffer that no step writes
    is meant, as an upper bound.
    """
    tensors = list(tensors)
    parameters = [(name, tensor) for name, tensor in tensors if isinstance(tensor, nn.Parameter)]
    buffers = [(name, tensor) for name, tensor in tensors if not isinstance(tensor, nn.Parameter)]
    return bad_parameter(parameters) or _bad_argument(calls) or _bad_buffer(buffers)


def bad_parameter(tensors: Iterable[tuple[str, Tensor]]) -> Origin | None:
    """The first that is not finite of tensors that are trained, of whatever class."""
    for name, tensor in tensors:
        if not is_finite(tensor):
            return leaf_origin("parameter", name, tensor, places(tensor))
    return None


def _bad_buffer(tensors: Iterable[tuple[str, Tensor]]) -> Origin | None:
    for name, tensor in tensors:
        if not is_finite(tensor):
            found = places(tensor)
            if found.nan or (found.inf and is_written(tensor)):
                return leaf_origin("parameter", name, tensor, found)
    return None


def is_written(tensor: Tensor) -> bool:
    """A buffer that steps write to."""
    is_buffer = not isinstance(tensor, nn.Parameter)
    return is_buffer and not tensor.is_inference() and tensor._version >= WRITTEN_BY_STEPS


def _bad_argument(calls: Iterable[Call]) -> Origin | None:
    for call in calls:
        for name, leaf in call.named_inputs():
            if isinstance(leaf, nn.Parameter) or leaf.grad_fn is not None:
                continue
            if leaf.is_floating_point() and not is_finite(leaf):
                found = places(leaf)
                if found.nan or found.inf:
                    return leaf_origin("input", name, leaf, found)
    return None


def _bad_input(watch: OperatorWatch, calls: list[Call]) -> Origin | None:
    """An input that holds -inf alone, where the first bad value was made of it by an operator that takes no mask."""
    if watch.bad_input is None or watch.origin is None:
        return None
    storage = watch.bad_input.untyped_storage()._cdata
    for call in calls:
        for name, leaf in call.named_inputs():
            if leaf.layout == torch.strided and leaf.untyped_storage()._cdata == storage:
                return leaf_origin("input", name, leaf, places(leaf))
    return None


def _bad_operand(capture: Capture, spoilt: Collection[Tensor]) -> tuple[Origin | None, Place | None]:
    """What was not finite before the loop's own loss was computed of it: a target, a baseline, an advantage."""
    held = {buffer.untyped_storage()._cdata for buffer in spoilt}
    for objective in (micro.objective for micro in capture.micro_steps):
        bad = objective.bad_operand() if objective is not None else None
        if objective is None or bad is None:
            continue
        if held.isdisjoint(operand.untyped_storage()._cdata for _, operand, _ in objective.bad_operands()):
            name, tensor, place = bad
            return leaf_origin("input", name, tensor, places(tensor)), place
    return None, None


def leaf_origin(phase: Phase, name: str, tensor: Tensor, found: Places) -> Origin:
    """A tensor that is known to be bad, without the operator that made it."""
    return Origin(
        module=name.rpartition(".")[0] if phase == "parameter" else None,
        op=phase,
        phase=phase,
        dtype=dtype_name(tensor.dtype),
        rows=(bad_rows(values) or None) if (values := values_of(tensor)).dim() else None,
        values=found.in_words,
        peak=found.peak,
        tensor=name,
        shape=list(tensor.shape),
    )


def _entered(watch: OperatorWatch, name: str, _module: nn.Module, _args: Any) -> None:
    watch.guarded(partial(watch.entered, name))


def _left(watch: OperatorWatch, name: str, _module: nn.Module, _args: Any, output: Any) -> None:
    watch.guarded(partial(watch.left, name, output))


@contextmanager
def _watching(names: list[tuple[str, nn.Module]], watch: OperatorWatch) -> Iterator[None]:
    handles: list[Any] = []
    try:
        for name, module in names:
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks; what it runs is seen operator by operator
            handles.append(module.register_forward_pre_hook(partial(_entered, watch, name)))
            handles.append(module.register_forward_hook(partial(_left, watch, name), always_call=True))
        with watch:
            yield
    finally:
        for handle in handles:
            handle.remove()
