"""See the calls that a training loop makes into torch: backward, clipping, loss scaling, zero_grad, schedules.

Each is observed at the one place through which every caller goes, and put back when the listener leaves. Inside a
compiled function, a CUDA graph or a backward node the original runs alone: nothing is added to what is traced. A
listener that raises is reported once through its own `broken` and never disturbs the call.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    is_batchedtensor,
    peek_interpreter_stack,
)
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from finitune.monitor.probes import checkpointed_segments, fetches, ranks, transform_calls
from finitune.monitor.probes.measurement import EachNorm
from finitune.monitor.probes.optimizers import parameters_of


class Listener(Protocol):
    """What the monitor offers to hear of."""

    def backward_begins(self, roots: list[Tensor], gradients: list[Tensor | None]) -> None: ...
    def backward_ended(self, *, failed: bool) -> None: ...
    def gradients_asked(self, roots: list[Tensor], inputs: list[Tensor], *, derived_again: bool = False) -> None: ...
    def gradients_returned(self, gradients: Sequence[Any]) -> None: ...
    def norm_measured(self, norm: Tensor, tensors: list[Tensor], each: EachNorm) -> None: ...
    def clipping(self, parameters: list[Tensor], max_norm: float) -> None: ...
    def clipping_by_value(self) -> None: ...
    def loss_scaled(self, scaler: Any, loss: Any, scaled: Any) -> None: ...
    def scaler_stepped(self, scaler: Any, optimizer: Any) -> None: ...
    def optimizer_made(self, optimizer: Any) -> None: ...
    def gradients_dropped(self, parameters: Callable[[], list[Tensor]]) -> None: ...
    def gradients_emptied(self, optimizer: Any) -> None: ...
    def scheduler_may_step(self, scheduler: Any) -> bool: ...
    def tensors_packed(self) -> None: ...
    def tensor_shared(self, tensor: Tensor, group: Any, summed: bool) -> None: ...  # noqa: FBT001
    def broken(self, error: BaseException) -> None: ...


_listeners: list[Listener] = []
_originals: list[tuple[Any, str, Any]] = []
_INHERITED = object()
"""Stands for an original that the class itself does not have."""
_stepping: list[Any] = []
"""The schedule whose step runs now; what it calls on the way, another schedule or its parent class, is part of it."""

_measuring: dict[int, EachNorm] = {}
"""For each thread that measures the norm of all gradients, those of single ones."""


def listen(listener: Listener) -> None:
    """Report every call to `listener` from now on."""
    if not _listeners:
        _install()
    _listeners.append(listener)


def leave(listener: Listener) -> None:
    """Report nothing more to `listener`; the last one to leave restores torch as it was."""
    if listener in _listeners:
        _listeners.remove(listener)
        if not _listeners:
            while _originals:
                owner, name, original = _originals.pop()
                delattr(owner, name) if original is _INHERITED else setattr(owner, name, original)


def unobservable() -> bool:
    """True while a function is traced, or a graph of the device is captured: no hook may touch anything then."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    try:
        accelerator = torch.accelerator.current_accelerator()
    except RuntimeError:  # torch 2.6, where there is none
        return False
    if accelerator is None:
        return False
    module = torch.get_device_module(accelerator)
    captures = getattr(module, "is_current_stream_capturing", None)
    return captures is not None and module.is_initialized() and captures()


def report(method: str, *args: Any, **kwargs: Any) -> None:
    """Call `method` of every listener; its exceptions go to its own `broken`."""
    for listener in _listeners:
        try:
            getattr(listener, method)(*args, **kwargs)
        except Exception as error:
            listener.broken(error)


def observe_zero_grad(kind: type) -> None:
    """Optimizer classes may override `zero_grad`; that of `kind` is observed too."""
    if "zero_grad" in vars(kind) and not hasattr(kind.zero_grad, "_finitune"):  # pyright: ignore[reportAttributeAccessIssue]
        _replace(kind, "zero_grad", _dropping(kind.zero_grad, parameters_of))  # pyright: ignore[reportAttributeAccessIssue]


def _replace(owner: Any, name: str, observed: Any) -> None:
    _originals.append((owner, name, vars(owner).get(name, _INHERITED)))
    observed._finitune = True
    setattr(owner, name, observed)


def _install() -> None:
    _replace(torch.autograd, "backward", _backward(torch.autograd.backward))
    _replace(torch.autograd, "grad", _grad(torch.autograd.grad))
    functional: Any = importlib.import_module("torch._functorch.eager_transforms")
    if hasattr(functional, "grad_and_value_impl"):
        _replace(functional, "grad_and_value_impl", _functional(functional.grad_and_value_impl))
    _replace(clip_grad, "_get_total_norm", _total_norm(clip_grad._get_total_norm))
    _replace(torch, "_foreach_norm", _foreach_norm(torch._foreach_norm))
    _replace(clip_grad, "_clip_grads_with_norm_", _clip(clip_grad._clip_grads_with_norm_))
    _replace(clip_grad, "_group_tensors_by_device_and_dtype", _group(clip_grad._group_tensors_by_device_and_dtype))
    _replace(torch.amp.GradScaler, "step", _scaler_step(torch.amp.GradScaler.step))
    _replace(torch.amp.GradScaler, "scale", _scale(torch.amp.GradScaler.scale))
    _replace(Optimizer, "__init__", _made(Optimizer.__init__))
    _replace(Optimizer, "zero_grad", _dropping(Optimizer.zero_grad, parameters_of, to_none=True))
    _replace(nn.Module, "zero_grad", _dropping(nn.Module.zero_grad, lambda module: list(module.parameters())))
    hooks = torch.autograd.graph.saved_tensors_hooks
    _replace(hooks, "__enter__", _packing(hooks.__enter__))
    for kind in _schedules():
        _replace(kind, "step", _asking_first(kind.step))
    if hasattr(fetches.ITERATOR, "_next_index"):
        _replace(fetches.ITERATOR, "_next_index", fetches.remembering(fetches.ITERATOR._next_index))
    _replace(checkpointed_segments.CheckpointFunction, "apply", checkpointed_segments.counting)
    if torch.distributed.is_available():
        for name in ("all_reduce", "all_gather", "all_gather_into_tensor"):
            _replace(torch.distributed, name, _collective(getattr(torch.distributed, name)))


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        # A node that runs a backward of its own (reentrant checkpointing) is part of the one outside.
        if unobservable() or torch._C._current_autograd_node() is not None:
            return original(tensors, *args, **kwargs)
        tensors = _kept(tensors)
        given = args[0] if args else kwargs.get("grad_tensors")
        report("backward_begins", _tensors(tensors), _tensors(given))
        failed = True
        try:
            original(tensors, *args, **kwargs)
            failed = False
        finally:
            report("backward_ended", failed=failed)

    return backward


def _grad(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if unobservable() or is_transformed_now() or torch._C._current_autograd_node() is not None:
            return original(outputs, inputs, *args, **kwargs)
        outputs, inputs = _kept(outputs), _kept(inputs)
        if kwargs.get("is_grads_batched"):
            return original(outputs, inputs, *args, **kwargs)
        derived_again = bool(kwargs.get("create_graph")) or args[2:3] == (True,)
        report("gradients_asked", _tensors(outputs), _tensors(inputs), derived_again=derived_again)
        gradients = original(outputs, inputs, *args, **kwargs)
        report("gradients_returned", _tensors(gradients))
        return gradients

    return grad


def _kept(given: Any) -> Any:
    """An iterator as a tuple, so that it can be read twice."""
    return tuple(given) if hasattr(given, "__next__") else given


def _tensors(given: Any) -> list[Any]:
    """The tensors among what autograd takes and gives; None stands for a gradient that is not there."""
    if isinstance(given, Tensor):
        return [given]
    values = given.values() if isinstance(given, dict) else given if isinstance(given, list | tuple) else ()
    return [value for value in values if value is None or isinstance(value, Tensor)]


def _functional(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def grad_and_value(func: Any, argnums: Any, has_aux: Any, args: Any, kwargs: Any) -> Any:
        found = original(func, argnums, has_aux, args, kwargs)
        if not unobservable() and is_batched_alone():
            gradients, value = found
            chosen = [args[n] for n in ([argnums] if isinstance(argnums, int) else argnums)]
            roots, asked, returned = map(_unbatched, (pytree.tree_leaves(value)[:1], chosen, gradients))
            batched = is_transformed_now()
            with _outside_of_transforms(), nullcontext() if batched else transform_calls.called_with(args, kwargs):
                losses = [root.detach().mean() if root.dim() else root for root in roots if isinstance(root, Tensor)]
                report("gradients_asked", losses, asked)
                report("gradients_returned", returned)
        return found

    return grad_and_value


def is_transformed_now() -> bool:
    """True within torch.func transforms, whose tensors are wrapped."""
    return peek_interpreter_stack() is not None


@contextmanager
def _outside_of_transforms() -> Iterator[None]:
    with ExitStack() as outside:
        for _ in get_interpreter_stack() or ():
            outside.enter_context(temporarily_pop_interpreter_stack())
        yield


def is_batched_alone() -> bool:
    """True in no torch.func transform but `vmap`, within which a tensor stands for those of all samples."""
    return all(one.key() == TransformType.Vmap for one in get_interpreter_stack() or ())


def _unbatched(tree: Any) -> list[Any]:
    """The leaves, with the tensors of all samples in the place of those that stand for them."""
    leaves = pytree.tree_leaves(tree)
    for n in range(len(leaves)):
        while isinstance(leaves[n], Tensor) and is_batchedtensor(leaves[n]):
            leaves[n] = get_unwrapped(leaves[n])
    return leaves


def _total_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def total_norm(tensors: Any, *args: Any, **kwargs: Any) -> Tensor:
        if unobservable():
            return original(tensors, *args, **kwargs)
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        each = _measuring[threading.get_ident()] = EachNorm()
        try:
            norm = original(tensors, *args, **kwargs)
        finally:
            _measuring.pop(threading.get_ident(), None)
        report("norm_measured", norm, tensors, each)
        return norm

    return total_norm


def _foreach_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    # What clipping measures of each gradient needs no second read of it. A norm in float16 overflows beyond 65504.
    @functools.wraps(original)
    def foreach_norm(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(tensors, *args, **kwargs)
        if _measuring and not unobservable() and args == (2.0,) and not kwargs:
            each = _measuring.get(threading.get_ident())
            if each is not None and type(found[0]) is Tensor and found[0].dtype != torch.float16:
                each.add(tensors, found)
        return found

    return foreach_norm


def _clip(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> None:
        if unobservable():
            return original(parameters, max_norm, *args, **kwargs)
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        report("clipping", parameters, max_norm)
        return original(parameters, max_norm, *args, **kwargs)

    return clip


def _group(original: Callable[..., Any]) -> Callable[..., Any]:
    # clip_grad_value_ itself is often imported by name before anybody listens; this is the first thing it calls.
    @functools.wraps(original)
    def group(*args: Any, **kwargs: Any) -> Any:
        if not unobservable() and sys._getframe(1).f_code.co_name == "clip_grad_value_":
            report("clipping_by_value")
        return original(*args, **kwargs)

    return group


def _scaler_step(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, optimizer, *args, **kwargs)
        if not unobservable():
            report("scaler_stepped", self, optimizer)
        return result

    return step


def _scale(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        if not unobservable():
            report("loss_scaled", self, outputs, scaled)
        return scaled

    return scale


def _made(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not unobservable():
            report("optimizer_made", self)

    return made


def _dropping(
    original: Callable[..., Any], parameters: Callable[[Any], list[Any]], *, to_none: bool = False
) -> Callable[..., Any]:
    """`to_none`: afterwards no gradient of them is there, where the caller does not ask otherwise."""

    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not unobservable():
            report("gradients_dropped", functools.partial(parameters, self))
            if to_none and kwargs.get("set_to_none", args[0] if args else True):
                report("gradients_emptied", self)
        return original(self, *args, **kwargs)

    return zero_grad


def _packing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def enter(self: Any) -> Any:
        if not unobservable():
            report("tensors_packed")
        return original(self)

    return enter


def _collective(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        own, group = (None, None) if unobservable() else ranks.given_to_others(original, args, kwargs)
        if own is not None:
            report("tensor_shared", own, group, original.__name__ == "all_reduce")
        return original(*args, **kwargs)

    return collective


def _schedules() -> list[Any]:
    """LRScheduler and the classes derived from it that step in a way of their own; a plateau has no schedule."""
    kinds: list[Any] = [torch.optim.lr_scheduler.LRScheduler]
    for kind in kinds:
        kinds += kind.__subclasses__()
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    return [kind for kind in dict.fromkeys(kinds) if "step" in vars(kind) and not issubclass(kind, plateau)]


def _asking_first(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if unobservable():
            return original(self, *args, **kwargs)
        answers = [] if _stepping else [_may_step(listener, self) for listener in _listeners]
        if not all(answers):
            return None
        _stepping.append(self)
        try:
            return original(self, *args, **kwargs)
        finally:
            _stepping.pop()

    return step


def _may_step(listener: Listener, scheduler: Any) -> bool:
    try:
        return listener.scheduler_may_step(scheduler)
    except Exception as error:
        listener.broken(error)
        return True
